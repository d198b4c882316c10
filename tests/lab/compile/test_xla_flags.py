"""Flags of XLA and their defaults."""

from lab.compile.xla_flags import Flag, flags, set_back


def test_defaults_are_those_that_jaxlib_gives_for_each_flag_it_has_an_attribute_of():
    from jaxlib import _jax

    found = flags()
    whole = _jax.CompileOptions()  # It owns its parts.
    build = whole.executable_build_options
    options = build.debug_options
    names = [name for name in vars(type(options)) if name in found and not name.endswith("_mode")]  # Enums differ.
    assert {"xla_backend_optimization_level", "xla_cpu_fast_math_honor_nans", "xla_dump_to"} <= set(names)
    told = {name: str(getattr(options, name)) for name in names}
    assert {name: found[name].default for name in names} == told


def test_an_enum_and_a_negative_number_are_read_by_their_names_and_signs():
    found = flags()
    assert found["xla_gpu_shape_checks"].default == "RUNTIME"
    assert found["xla_multiheap_size_constraint_per_heap"].default == "-1"


def test_a_flag_with_several_values_has_them_all_by_name():
    assert {"FUSION", "CUBLAS"} <= set(flags()["xla_gpu_enable_command_buffer"].default.split(","))
    assert flags()["xla_disable_hlo_passes"] == Flag("", "")


def test_flags_whose_default_changed_are_set_back_and_new_ones_switched_off():
    off, on = Flag("False", "False"), Flag("True", "False")
    old = {"xla_gpu_a": off, "xla_b": Flag("8", "0"), "xla_same": on, "xla_cpu_c": off, "xla_gone": on}
    new = {"xla_gpu_a": on, "xla_b": Flag("16", "0"), "xla_same": on, "xla_cpu_c": on, "xla_dump_d": on}
    new |= {"xla_gpu_on": on, "xla_gpu_off": off, "xla_gpu_number": Flag("7", "0"), "xla_gpu_some": Flag("A,B", "")}
    back = {"xla_b": "8", "xla_gpu_a": "False", "xla_gpu_on": "False", "xla_gpu_some": ""}
    assert set_back(old, new, "gpu") == back
