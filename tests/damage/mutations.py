"""Ways to damage a text, drawn by a random generator: `apply(name, text, random)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

TOKEN = re.compile(r"%?[\w.\-]+")
NUMBER = re.compile(r"(?<![\w.%\-])\d+")
NAME = re.compile(r"%[\w.\-]+")
CALLEE = re.compile(r"((?:calls|to_apply|body|condition|true_computation|false_computation)=%?)([\w.\-]+)")
NUMBERS = (
    "0",
    "1",
    "-1",
    "-8",
    "2147483648",
    "9" * 19,
    "9" * 40,
    "9" * 5_000,
    "1e308",
    "nan",
    "inf",
    "",
    "0x10",
    "1.5",
)
BYTES = [chr(code) for code in (*range(32, 127), 0, 9, 10, 13, 27, 127, 0x85, 0xE9, 0x202E, 0x1F600)]


def flip(text: str, random: Random) -> str:
    at = random.randrange(len(text))
    return text[:at] + random.choice(BYTES) + text[at + 1 :]


def flips(text: str, random: Random) -> str:
    for _ in range(random.randint(2, 12)):
        text = flip(text, random)
    return text


def lose_characters(text: str, random: Random) -> str:
    at = random.randrange(len(text))
    return text[:at] + text[at + random.randint(1, 80) :]


def cut(text: str, random: Random) -> str:
    return text[: random.randrange(len(text))]


def cut_at_line(text: str, random: Random) -> str:
    lines = text.split("\n")
    return "\n".join(lines[: random.randrange(len(lines))])


def cut_between_computations(text: str, random: Random) -> str:
    ends = [found.end() for found in re.finditer(r"^\}.*\n", text, re.MULTILINE)]
    return text[: random.choice(ends)] if ends else text


def lose_head(text: str, random: Random) -> str:
    lines = text.split("\n")
    return "\n".join(lines[random.randrange(len(lines)) :])


def lose_line(text: str, random: Random) -> str:
    lines = text.split("\n")
    del lines[random.randrange(len(lines))]
    return "\n".join(lines)


def lose_lines(text: str, random: Random) -> str:
    for _ in range(random.randint(2, 8)):
        text = lose_line(text, random)
    return text


def repeat_line(text: str, random: Random) -> str:
    lines = text.split("\n")
    lines.insert(random.randrange(len(lines)), random.choice(lines))
    return "\n".join(lines)


def swap_lines(text: str, random: Random) -> str:
    lines = text.split("\n")
    a, b = (random.randrange(len(lines)) for _ in range(2))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def join_lines(text: str, random: Random) -> str:
    ends = [at for at, mark in enumerate(text) if mark == "\n"]
    return _replaced(text, (at := random.choice(ends)), at + 1, " ") if ends else text


def split_line(text: str, random: Random) -> str:
    at = random.randrange(len(text))
    return _replaced(text, at, at, "\n")


def swap_tokens(text: str, random: Random) -> str:
    found = list(TOKEN.finditer(text))
    one, other = sorted(random.sample(found, 2), key=lambda token: token.start())
    between = text[one.end() : other.start()]
    return text[: one.start()] + other[0] + between + one[0] + text[other.end() :]


def swap_tokens_of_line(text: str, random: Random) -> str:
    return _in_a_line(text, random, lambda line: swap_tokens(line, random) if len(TOKEN.findall(line)) > 1 else line)


def lose_token(text: str, random: Random) -> str:
    token = random.choice(list(TOKEN.finditer(text)))
    return _replaced(text, token.start(), token.end(), "")


def other_number(text: str, random: Random) -> str:
    found = list(NUMBER.finditer(text))
    if not found:
        return text
    number = random.choice(found)
    near = str(int(number[0][:9]) + random.choice([-1, 1]))
    return _replaced(text, number.start(), number.end(), random.choice([near, *NUMBERS]))


def other_operand(text: str, random: Random) -> str:
    """One that is defined elsewhere, perhaps below, so that values depend on themselves."""
    found = list(NAME.finditer(text))
    return (
        text
        if not found
        else _replaced(text, (one := random.choice(found)).start(), one.end(), random.choice(found)[0])
    )


def other_callee(text: str, random: Random) -> str:
    """A computation that may run itself."""
    found = list(CALLEE.finditer(text))
    names = re.findall(r"^(?:ENTRY )?%?([\w.\-]+) \(", text, re.MULTILINE)
    return text if not found or not names else _replaced(text, *random.choice(found).span(2), random.choice(names))


def nest(text: str, random: Random) -> str:
    """Very many brackets, closed or not."""
    at, depth, (opening, closing) = (
        random.randrange(len(text)),
        random.choice([3, 300, 30_000]),
        random.choice(
            ["()", "{}", "[]", ("jvp(", ")"), ("/*", "*/"), ("(f32[2], ", ")"), ('"', '"'), ("%a = f32[] call(", ")")]
        ),
    )
    return _replaced(text, at, at, opening * depth + closing * random.choice([depth, 0]))


def nest_calls(text: str, random: Random) -> str:
    """Calls made twice on every level, before the entry."""
    levels = random.choice([2, 60, 400])
    chain = "".join(
        f"%deep{n} (d{n}: f32[8]) -> f32[8] {{\n  %d{n} = f32[8]{{0}} parameter(0)\n  %e{n} = f32[8]{{0}} call(%d{n}), "
        f"to_apply=%deep{n - 1}\n  ROOT %g{n} = f32[8]{{0}} call(%e{n}), to_apply=%deep{n - 1}\n}}\n\n"
        for n in range(1, levels)
    )
    last = random.choice([levels - 1, 0])
    first = "%deep0 (d0: f32[8]) -> f32[8] {\n  ROOT %d0 = f32[8]{0} parameter(0)\n}\n\n"
    before, entry, after = text.partition("ENTRY ")
    return f"{before}{first}{chain}{entry}" + _in_a_line(
        after, random, lambda line: CALLEE.sub(rf"\g<1>deep{last}", line)
    )


DAMAGE: dict[str, Callable[[str, Random], str]] = {
    function.__name__: function
    for function in (
        flip, flips, lose_characters, cut, cut_at_line, cut_between_computations, lose_head, lose_line, lose_lines,
        repeat_line, swap_lines, join_lines, split_line, swap_tokens, swap_tokens_of_line, lose_token, other_number,
        other_operand, other_callee, nest, nest_calls,
    )
}  # fmt: skip


def damaged(text: str, kinds: list[str], random: Random) -> str:
    for kind in kinds:
        if len(TOKEN.findall(text[:100_000])) > 1:
            text = DAMAGE[kind](text, random)
    return text


def _replaced(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _in_a_line(text: str, random: Random, change: Callable[[str], str]) -> str:
    lines = text.split("\n")
    at = random.randrange(len(lines))
    lines[at] = change(lines[at])
    return "\n".join(lines)
