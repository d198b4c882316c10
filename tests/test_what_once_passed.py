"""What once passed and should not have: each with the test that holds it, so that none of these tests is lost."""

import pytest

from tests.paths import ROOT

THREE_STEPS = "lab/harness/decoder/test_three_steps.py"
BEHAVIOURS, SETTLEMENT = "lab/settle/test_behaviours.py", "lab/settle/test_settlement.py"
FLOPS, TIME = "lab/hlo/test_flops.py", "lab/measure/test_step_time.py"
READ, MODES, INTEGRITY = "lab/hlo/test_read.py", "lab/hlo/test_group_modes.py", "lab/hlo/test_integrity.py"
TEXTS, FILES = "lab/compile/test_text_files.py", "lab/core/test_files.py"

HELD = {
    "weights renewed from the old master": f"{THREE_STEPS}::weights_renewed_from_the_old_master_are_found",
    "gradients twice too large": f"{THREE_STEPS}::a_loss_divided_by_the_tokens_of_a_micro_batch_is_found",
    "a window one too wide": f"{THREE_STEPS}::a_window_of_one_token_too_many_is_found",
    "a router without gradient": f"{THREE_STEPS}::a_router_without_gradient_is_found",
    "a step that is not donated": f"{THREE_STEPS}::a_step_that_keeps_its_old_state_is_found",
    "master weights gathered in float32": (
        "cases/test_gradients.py::master_weights_that_are_gathered_in_f32_are_not_taken_for_promoted_ones"
    ),
    "four bytes more, and executions that do not divide": (
        f"{BEHAVIOURS}::no_rule_divides_what_it_cannot_divide_exactly"
    ),
    "a scatter alone, without the sum over data": (
        f"{BEHAVIOURS}::a_sum_over_the_second_axis_is_missing_where_the_first_was_not_taken_as_the_sum_over_both"
    ),
    "forward for backward, and a term under another's scope": (
        f"{SETTLEMENT}::what_a_text_says_of_phase_and_scope_is_compared_and_what_it_does_not_say_is_counted"
    ),
    "permutes of a ring reversed": (
        f"{SETTLEMENT}::another_shift_is_another_permute_and_so_is_one_that_no_prediction_states"
    ),
    "another number of groups": f"{SETTLEMENT}::another_number_of_groups_is_another_transfer",
    "a rule that was predicted and did not happen": (
        f"{SETTLEMENT}::a_predictable_behaviour_that_did_not_happen_is_told"
    ),
    "a rule that never happens": "lab/settle/test_kept_steps.py::every_rule_of_the_catalogue_happens_in_some_step",
    "declared ZeRO-2 in float32": (
        "lab/settle/test_kept_steps.py::a_scatter_in_float32_of_two_micro_batches_is_explained"
    ),
    "convolutions and products with a vector on GPUs": (
        f"{FLOPS}::a_gpu_program_has_the_flops_that_are_counted_by_hand"
    ),
    "complex products": f"{FLOPS}::xla_counts_a_complex_product_as_a_real_one",
    "ragged products": f"{FLOPS}::a_ragged_product_says_that_it_counts_every_group",
    "FFT, Cholesky and triangular solve as 0": f"{FLOPS}::work_of_another_form_is_unknown_and_noted_not_0",
    "a time without a transfer of the ledger": (
        f"{TIME}::a_transfer_that_the_kernels_do_not_meet_as_often_as_the_ledger_says_is_refused"
    ),
    "pairs in quotes": f"{READ}::a_message_goes_to_the_pairs_that_its_frontend_attributes_name_quoted_or_not",
    "empty groups without a channel": f"{MODES}::without_a_channel_one_replica_sends_nothing",
    "groups of replicas or partitions": f"{MODES}::groups_of_two_replicas_of_four_partitions",
    "a custom fusion that keeps more than its part": (
        f"{READ}::a_custom_fusion_that_keeps_more_than_its_part_of_the_sum_is_an_all_reduce"
    ),
    "permutes in place": f"{READ}::a_permute_in_place_moves_its_slices",
    "texts cut, lines lost and tokens changed": (
        "hlo_corpus/test_damaged_texts.py::"
        "damaged_texts_are_refused_noted_or_the_same_program_and_none_is_silently_another"
    ),
    "an absent body and an operand that nothing defines": f"{INTEGRITY}::what_is_damaged_is_said",
    "half of a text within every budget": (f"{TEXTS}::half_of_a_text_passes_neither_an_empty_budget_nor_fail_on"),
    "two operands of each other": f"{TEXTS}::operands_that_are_made_of_each_other_are_damage_and_end",
    "calls that double the time per level": (
        "lab/hlo/test_walk.py::calls_made_twice_on_each_of_thirty_levels_run_their_reduction_a_thousand_million_times"
    ),
    "Windows line ends": f"{INTEGRITY}::lines_of_windows_and_a_byte_order_mark_are_read",
    "escape sequences": f"{TEXTS}::control_characters_in_names_of_a_program_reach_no_terminal",
    "pipes": f"{TEXTS}::a_pipe_is_read_as_a_file_is",
    "files without end": f"{TEXTS}::a_file_without_end_is_refused_at_its_beginning",
    "compressed texts without limit": f"{TEXTS}::a_text_of_more_than_the_limit_is_refused",
    "one snapshot of two tests": (
        "lab/guard/test_pytest_plugin.py::tests_of_one_name_in_two_classes_and_parameters_alike_have_a_snapshot_each"
    ),
    "saved ledgers of another schema or with negative bytes": (
        "lab/compile/test_saved_ledgers.py::a_saved_ledger_is_refused_with_the_key_that_is_wrong"
    ),
    "added fields refused": "lab/compile/test_saved_ledgers.py::fields_that_a_later_release_added_are_passed_over",
    "damaged JSON": "lab/test_given_files.py::a_saved_ledger_is_read_or_refused_in_a_line",
    "damaged TOML": "lab/test_given_files.py::a_snapshot_is_compared_or_refused_in_a_line",
    "an internal error that reads as refuted": (
        "lab/cli/test_faults.py::a_fault_in_any_command_ends_with_3_and_a_file_that_says_where"
    ),
    "python -O": (
        "lab/harness/test_without_assertions.py::a_program_with_wrong_numbers_is_refused_without_assertions_too"
    ),
    "torn files": f"{FILES}::three_writers_at_a_time_never_show_a_reader_a_torn_file_or_none",
    "a planted link": f"{FILES}::no_link_that_somebody_planted_is_followed",
    "modes of files": f"{FILES}::an_existing_file_keeps_its_mode_and_a_new_one_has_that_of_the_umask",
    "a project's own meshes.py": "test_installed.py::a_project_with_its_own_meshes_and_experiments_is_inspected",
    "a project's own lab.py": "test_installed.py::a_project_with_its_own_lab_runs_its_tests",
    "programs that abort, exit or write past Python": (
        "lab/cli/test_user_programs.py::what_ends_a_program_is_one_line_each_and_the_others_are_inspected"
    ),
    "runs that abort": "lab/cli/test_runs_that_end.py::an_abort_ends_one_run_one_answer_or_one_training_and_no_other",
    "an exception whose text raises": "meshes/test_errors.py::an_error_whose_text_raises_is_its_type",
    "names of axes that JAX takes": (
        "lab/cli/test_axis_names.py::an_axis_with_a_hyphen_is_inspected_budgeted_saved_and_shown"
    ),
    "a page of 100,000 transfers": (
        "lab/report/test_html_browser.py::100_000_different_rows_open_in_seconds_and_are_built_as_they_are_asked_for"
    ),
    "groups of 65,536 devices": "lab/diagnosis/test_axes_within.py::32768_groups_of_65536_devices_take_no_second",
}


@pytest.mark.parametrize("passed", HELD)
def test_what_once_passed_has_its_test(passed):
    path, _, name = HELD[passed].partition("::")
    assert f"def test_{name}(" in (ROOT / "tests" / path).read_text()
