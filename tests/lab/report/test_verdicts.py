from dataclasses import replace
from fractions import Fraction

from lab.core.codec import to_json
from lab.core.ledger import Kind, Ledger, Transfer
from lab.harness.claim import Claim, ClaimVerdict
from lab.harness.decoder.published import PublishedShape
from lab.harness.registry import load
from lab.harness.result import Composition, Numerics, Result, Seconds
from lab.report.verdicts import result_text, results_text, summary_text
from lab.settle import Context, settle
from lab.zoo import published_run

REDUCE = Transfer(Kind.ALL_REDUCE, ("data",), 8, 4, "f32", 1_000_000, phase="backward", scope="layers/mlp/up")
GATHER = Transfer(Kind.ALL_GATHER, ("tensor",), 2, 1, "f32", 500, scope="layers/mlp/down")


def result(predicted: list[Transfer], measured: list[Transfer], platform: str = "gpu", **rest) -> Result:
    ledger = Ledger(tuple(measured))
    settlement = settle(Ledger(tuple(predicted)), ledger, Context(platform, "declared"))
    mesh, seconds = {"data": 8, "tensor": 2}, Seconds(1.0, 0.1, 2.0)
    return Result("ch14", "declared", "gpu:h100:2x8", mesh, {"layers": 4}, seconds, ledger, settlement, **rest)


def failed() -> Result:
    return Result(
        "ch14", "declared", "gpu:h100:2x8", {"data": 16}, {"layers": 4}, Seconds(0.0, 0.0, 2.0), failure="out of memory"
    )


def lines(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(start)]


def test_four_reductions_of_a_megabyte_over_eight_are_7_million_bytes_predicted_and_measured():
    ((*run, axes, predicted, measured, wire_predicted, wire_measured),) = lines(
        summary_text([result([REDUCE], [REDUCE])]), "exact"
    )
    assert run == ["exact", "ch14", "declared", "gpu:h100:2x8", "16"]
    assert (axes, predicted, measured, wire_predicted, wire_measured) == ("data", "4", "4", "7,000,000", "7,000,000")


def test_a_run_on_two_axes_has_two_lines_and_its_name_once():
    text = summary_text([result([REDUCE, GATHER], [REDUCE, GATHER])])
    assert len(lines(text, "exact")) == 1
    assert [line.split() for line in text.splitlines() if line.startswith(" ") and "tensor" in line] == [
        ["tensor", "1", "1", "250", "250"]
    ]


def test_an_explained_term_shows_both_numbers_and_the_behaviour():
    wide = replace(REDUCE, payload_bytes=2_000_000, is_widened=True)
    text = summary_text([result([replace(REDUCE, dtype="bf16")], [wide], platform="cpu")])
    assert lines(text, "explained ")[0][-2:] == ["7,000,000", "14,000,000"]
    assert "explained, 1 term: C1" in text


def test_what_no_term_asks_for_is_told_with_its_bytes():
    text = summary_text([result([REDUCE], [REDUCE, GATHER])])
    assert ["tensor", "0", "1", "0", "250"] in lines(text, "   ")
    assert "ch14 declared gpu:h100:2x8: unexplained 1 x all_gather over tensor of 500 B f32 (layers/mlp/down)" in text
    assert text.endswith("1 run: 1 refuted; 1 unexplained, nothing missing")


def test_what_the_program_lacks_is_told_with_its_term():
    text = summary_text([result([REDUCE, GATHER], [REDUCE])])
    assert "ch14 declared gpu:h100:2x8: missing layers/mlp/down" in text
    assert text.endswith("1 run: 1 refuted; nothing unexplained, 1 missing")


def test_a_failed_run_says_why_and_the_others_stand():
    text = summary_text([failed(), result([REDUCE], [REDUCE])])
    assert "ch14 declared gpu:h100:2x8: failed: out of memory" in text
    assert text.endswith("2 runs: 1 failed, 1 exact; nothing unexplained, nothing missing")


def test_refuted_claims_are_told_and_the_others_counted():
    claims = (
        Claim("ch14.volume", ClaimVerdict.CONFIRMED, "7 is 7"),
        Claim("ch14.other", ClaimVerdict.REFUTED, "1 is not 2"),
    )
    text = summary_text([result([REDUCE], [REDUCE], claims=claims)])
    assert "refuted ch14.other: 1 is not 2" in text
    assert "7 is 7" not in text
    assert "claims of the book: 1 confirmed, 1 refuted" in text


def test_runs_that_are_exact_stand_before_those_that_are_not():
    wide = replace(REDUCE, payload_bytes=2_000_000, is_widened=True)
    explained = result([replace(REDUCE, dtype="bf16")], [wide], platform="cpu")
    refuted, exact = result([REDUCE], [REDUCE, GATHER]), result([REDUCE], [REDUCE])
    text = summary_text([refuted, explained, exact])
    verdicts = [line.split()[0] for line in text.splitlines() if "gpu:h100:2x8  " in line]
    assert verdicts == ["exact", "explained", "refuted"]


def test_statements_that_are_known_errata_are_no_refuted_claims_of_the_lab():
    known = [Claim(f"ch14.{at}", ClaimVerdict.REFUTED, "1 is not 2", disputed=f"D-{at}") for at in (1, 2)]
    claims = (Claim("ch14.volume", ClaimVerdict.CONFIRMED, "7 is 7"), *known)
    text = summary_text([result([REDUCE], [REDUCE], claims=claims)])
    assert (
        "claims of the book: 1 confirmed, 2 known errata\n"
        "a known erratum is a statement of the book that is refuted here, and listed by lab book --errata\n"
    ) in text
    assert "refuted (known erratum D-1) ch14.1: 1 is not 2" in result_text(result([REDUCE], [REDUCE], claims=claims))
    assert "erratum" not in summary_text([result([REDUCE], [REDUCE], claims=claims[:1])])


def test_the_worst_of_the_numeric_errors_is_told():
    runs = [result([REDUCE], [REDUCE], numerics=Numerics(error, 1e-5)) for error in (1e-7, 3e-7)]
    assert "worst relative error 3.0e-07, tolerance 1e-05" in summary_text(runs)


def test_one_run_in_full_has_its_terms_phases_and_claims():
    claims = (Claim("ch14.volume", ClaimVerdict.CONFIRMED, "7 is 7"),)
    text = result_text(result([REDUCE], [REDUCE], claims=claims))
    assert text.startswith("exact: ch14, declared, gpu:h100:2x8, mesh data=8,tensor=2\nlayers 4\n")
    assert ["exact", "layers/mlp/up", "backward", "all_reduce", "data", "4", "4", "7,000,000", "7,000,000"] in lines(
        text, "exact"
    )
    assert text.endswith("confirmed ch14.volume: 7 is 7")


def test_the_three_columns_of_a_run_add_up_to_what_is_measured():
    text = result_text(result([REDUCE], [REDUCE, GATHER]))
    assert "sends 7,000,250 B a step: 7,000,000 exact or explained, 0 attributed, 250 unexplained" in text


def test_what_stands_in_branches_is_sent_at_most():
    taken = replace(REDUCE, conditional=True)
    assert "program sends at most 7,000,000 B a step, if every branch runs: all exact" in result_text(
        result([taken], [taken])
    )
    assert "program sends 7,000,000 B a step: all exact" in result_text(result([REDUCE], [REDUCE]))


def test_a_run_says_what_goes_along_each_axis():
    found = result([REDUCE], [REDUCE])
    placed = replace(found.measured, mesh=found.mesh, target=found.target)
    text = result_text(replace(found, measured=placed))
    assert "\ndata: 4 all_reduces of 1 MB: 100 % of the wire bytes\ntensor: nothing\n" in f"{text}\n"


def test_a_term_that_stands_in_a_branch_says_so_and_what_its_numbers_are():
    taken = replace(REDUCE, conditional=True)
    text = result_text(result([taken, GATHER], [taken, GATHER]))
    kinds = [line[2:] for line in lines(text, "exact ")]
    assert kinds[0][1:5] == ["all_reduce", "if", "taken", "data"] and kinds[1][:2] == ["all_gather", "tensor"]
    assert len(lines(text, "if taken: the transfer is in a branch")) == 1
    assert "if taken" not in result_text(result([REDUCE], [REDUCE]))


def test_a_branch_that_no_term_asks_for_is_told():
    text = summary_text([result([REDUCE], [replace(REDUCE, conditional=True)])])
    assert "predicted 4 x all_reduce of 1,000,000 B f32, compiled 4 x all_reduce of 1,000,000 B f32 in a branch" in text


def test_two_runs_in_full_stand_apart():
    assert len(results_text([result([REDUCE], [REDUCE]), failed()]).split("\n\n\n")) == 2


def test_two_transfers_taken_by_size_are_told_and_none_is_not():
    nameless = [
        replace(REDUCE, scope="", executions=executions, instruction=f"all-reduce.{executions}")
        for executions in (1, 3)
    ]
    found = result([REDUCE], nameless)
    assert all(
        "\n2 transfers carry no metadata and were matched by size" in text
        for text in (result_text(found), summary_text([found]))
    )
    assert to_json(found)["taken_by_size"] == 2
    assert "by size" not in result_text(result([REDUCE], [REDUCE]))


def test_a_published_run_says_how_long_its_step_took_from_where_that_is_known_and_what_differs():
    run = published_run("mlperf5-405b-512")
    found = result([REDUCE], [REDUCE], published=run)
    said = "published of mlperf5-405b-512, on gpu:h100:64x8, mesh data=4,pipe=8,context=2,tensor=8: 55.13 s a step"
    assert f"\n{said}\n  source: {run.source}\n  what differs: theirs gathers weights in FP8," in result_text(found)
    assert to_json(found)["published"].items() >= {"step_s": 55.1344, "mfu": None, "differs": run.differs}.items()
    of_share = replace(found, published=published_run("llama3-405b-8k-16384"))
    assert "tensor=8: 41 % of the peak (MFU)\n" in result_text(of_share)
    assert "published" not in to_json(result([REDUCE], [REDUCE]))
    assert load("ch34_published").published(PublishedShape.preset("mlperf5-405b-512")) == run


def test_what_is_sent_once_a_step_stands_by_axes_the_most_bytes_first_and_stages_are_theorys():
    once = replace(REDUCE, executions=1)
    found = Composition(
        sent_by_stages=(Fraction(1000), Fraction(3000)),
        once_a_step=(GATHER, once, once),
        computed=None,
        sent_by_axes={"data": (Fraction(400), Fraction(3000)), "pipe": (Fraction(600), Fraction(0))},
    )
    text = result_text(result([REDUCE], [REDUCE], composition=found))
    assert (
        "\nonce a step, whatever the number of micro-batches: 3 transfers, data 3.5 MB, tensor 250 B\n" in f"{text}\n"
    )
    stages = (
        "by theory and the schedule, a device of the busiest stage (1) sends 3 kB a step (data 3 kB), one of all stages "
        "2 kB on"
    )
    assert f"\n{stages} average\n" in text
