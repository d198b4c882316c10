"""Stacks from the tables of files, functions, lines and frames."""

import os

from lab.core.frame import Frame
from lab.hlo import frames
from lab.hlo.frames import Frames

FILES = """
FileNames
1 "train.py"
2 "/lib/site-packages/flax/nnx.py"
3 "/lib/site-packages/jax/_src/api.py"
4 "{tracing}inspection.py"
5 "/venv/bin/pytest"

FunctionNames
1 "step"
2 "Linear.__call__"
3 "build.<locals>.step.<locals>.<lambda>"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=88 end_line=88 column=4 end_column=9}}
2 {{file_name_id=2 function_name_id=2 line=7 end_line=7 column=4 end_column=9}}
3 {{file_name_id=3 function_name_id=1 line=5}}
4 {{file_name_id=4 function_name_id=1 line=1}}
5 {{file_name_id=1 function_name_id=3 line=90}}
6 {{file_name_id=5 function_name_id=2 line=8}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=3}}
4 {{file_location_id=3 parent_frame_id=4}}
5 {{file_location_id=4 parent_frame_id=2}}
6 {{file_location_id=5 parent_frame_id=6}}
7 {{file_location_id=9 parent_frame_id=7}}
8 {{file_location_id=3}}
9 {{file_location_id=1 parent_frame_id=12}}
10 {{file_location_id=6}}
11 {{file_location_id=1 parent_frame_id=11}}

"""
STEP = Frame("train.py", 88, "step")
LINEAR = Frame("/lib/site-packages/flax/nnx.py", 7, "Linear.__call__", is_library=True)


def stack(number: int) -> tuple[Frame, ...]:
    tables = Frames("HloModule jit_step\n" + FILES.format(tracing=frames._TRACING))
    return tables.stack(f', metadata={{op_name="x" stack_frame_id={number}}}')


def test_a_stack_is_read_from_its_innermost_line_and_packages_are_marked():
    assert stack(2) == (LINEAR, STEP)


def test_frames_of_jax_are_left_out():
    assert stack(4) == (LINEAR, STEP)


def test_a_frame_of_jax_stands_where_there_is_no_other():
    assert [frame.line for frame in stack(8)] == [5]


def test_a_stack_ends_where_the_lab_calls_the_program():
    assert stack(6) == (Frame("train.py", 90, "build.<locals>.step.<locals>.<lambda>"),)


def test_packages_that_run_the_users_code_are_left_out():
    assert stack(11) == (STEP,)
    assert [frame.file for frame in stack(10)] == ["/venv/bin/pytest"]


def test_a_frame_that_is_not_in_the_tables_ends_the_stack():
    assert stack(7) == stack(99) == ()


def test_a_frame_has_no_parent_after_itself():
    assert stack(9) == (STEP,)


def test_a_lambda_is_named_after_the_function_that_it_is_written_in():
    names = {"build.<locals>.step.<locals>.<lambda>": "step", "Linear.__call__": "Linear", "Block.<lambda>": "Block"}
    names |= {"<module>": "", "": "", "Model.loss.<locals>.<listcomp>": "Model.loss"}
    assert {function: Frame("a.py", 1, function).name for function in names} == names


def test_older_metadata_has_one_line():
    metadata = ', metadata={op_name="x" source_file="old.py" source_line=12}'
    assert Frames("").stack(metadata) == (Frame("old.py", 12),)
    assert Frames("").stack(metadata.replace("}", " stack_frame_id=2}")) == (Frame("old.py", 12),)


def test_files_below_the_working_directory_are_relative_to_it():
    metadata = f', metadata={{source_file="{os.getcwd()}/model/a.py" source_line=3}}'
    assert Frames("").stack(metadata)[0].place == "model/a.py:3"


def test_an_instruction_without_metadata_has_no_stack():
    assert Frames(FILES).stack("") == ()
