"""A report in a real browser, opened from a file without a network: what a reader clicks, and what it looks like."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.report.html.page import Part, Section, Verdict, document
from lab.report.html.tables import Column, numbers, table
from tests.lab.report.pages import HOSTILE, ledger, page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; it comes with the extra dev")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not CHROMIUM:
    pytest.skip("no chromium on PATH", allow_module_level=True)
ALONE = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
COUNT, MOST_SECONDS, MOST_BYTES = 5000, 5, 8_000_000
SCREENSHOTS = os.environ.get("SCREENSHOTS")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ALONE)
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for count in (60, COUNT):
        (folder / f"{count}.html").write_text(page(count), encoding="utf-8")
    return {count: folder / f"{count}.html" for count in (60, COUNT)}


@pytest.fixture
def opened(browser, files) -> Iterator:
    """Opens the page of so many transfers; fails where it says anything on the console or asks for anything but its
    file."""
    trouble, contexts = [], []

    def open_page(count: int = 60, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        one = context.new_page()
        one.set_default_timeout(20_000)
        one.on("console", lambda message: trouble.append(message.text))
        one.on("pageerror", lambda error: trouble.append(str(error)))
        one.on("request", lambda request: request.url.startswith("file:") or trouble.append(request.url))
        one.goto(files[count].as_uri())
        return one

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def grid(one):
    """Of the transfers."""
    return one.locator(".grid", has=one.locator("caption", has_text="of transfers alike"))


def cells(one, column: str) -> list[str]:
    at = [head.split(" \N{UP DOWN ARROW}")[0] for head in grid(one).locator("thead th").all_inner_texts()].index(column)
    return (
        grid(one)
        .locator("tbody tr:not(.detail)")
        .evaluate_all("(rows, at) => rows.map((row) => row.cells[at].textContent)", at)
    )


def sort(one, column: str) -> str:
    grid(one).get_by_role("button", name=column, exact=True).click()
    return grid(one).locator("thead th", has_text=column).first.get_attribute("aria-sort")


def test_numbers_sort_by_value_and_names_by_number(opened):
    one = opened()
    assert sort(one, "payload each") == "descending"
    payloads = sorted((t.payload_bytes for t in ledger().transfers), reverse=True)
    shown = (
        grid(one)
        .locator("tbody tr:not(.detail)")
        .evaluate_all("(rows) => rows.map((row) => Number(row.cells[4].dataset.value))")
    )
    assert shown == payloads
    assert sort(one, "payload each") == "ascending"
    assert sort(one, "scope") == "ascending"
    assert [int(scope.split("/")[0].removeprefix("layers_")) for scope in cells(one, "scope")] == list(range(60))
    assert grid(one).locator("[aria-sort]").count() == 1


def test_sorting_and_filtering_work_from_the_keyboard(opened):
    one = opened()
    grid(one).get_by_role("button", name="scope", exact=True).focus()
    one.keyboard.press("Enter")
    assert cells(one, "scope")[:2] == ["layers_0/mlp", "layers_1/mlp"]
    grid(one).get_by_label("Find").focus()
    one.keyboard.type("layers_12/ gather")
    assert cells(one, "scope") == ["layers_12/mlp"]


def test_filters_combine_and_add_up_the_bytes_that_they_leave(opened):
    one = opened()
    grid(one).get_by_label("kind").select_option("all_reduce")
    grid(one).get_by_label("phase").select_option("backward")
    left = [t for t in ledger().transfers if t.kind == "all_reduce" and t.phase == "backward"]
    assert sorted(cells(one, "scope")) == sorted(t.scope for t in left)
    wire = float(sum(t.executions * t.wire_bytes for t in left))
    assert grid(one).locator("output").inner_text() == f"{len(left)} of 60 rows, wire a step {wire / 1e6:.4g} MB"
    grid(one).get_by_label("Find").fill("no such scope")
    assert grid(one).locator("output").inner_text() == "0 of 60 rows, wire a step 0 B"


def test_a_row_opens_into_its_sites_by_mouse_and_by_keyboard_and_sorting_keeps_them_together(opened):
    one = opened()
    row, detail = grid(one).locator("tbody tr:not(.detail)").nth(4), grid(one).locator("tbody tr.detail").nth(4)
    scope = row.locator("td").nth(8).inner_text()
    assert not detail.is_visible()
    row.locator("summary").click()
    assert detail.is_visible() and f"scope {scope}" in detail.inner_text()
    sort(one, "scope")
    (opened_row,) = [at for at, found in enumerate(cells(one, "scope")) if found == scope]
    detail = grid(one).locator("tbody tr.detail").nth(opened_row)
    assert detail.is_visible() and f"scope {scope}" in detail.inner_text()
    grid(one).locator("summary").nth(opened_row).press("Enter")
    assert not detail.is_visible()


def test_a_search_finds_the_instruction_that_a_row_opens_into(opened):
    one = opened()
    grid(one).get_by_label("Find").fill("all-gather.12,")
    assert cells(one, "scope") == ["layers_12/mlp"]


def test_a_hostile_name_is_found_as_text(opened):
    one = opened()
    grid(one).get_by_label("Find").fill(HOSTILE)
    assert cells(one, "scope") == [f"layers_3/{HOSTILE}"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_it_is_switched_and_then_stays(opened, scheme):
    def brightness(one) -> int:
        return one.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")

    one = opened(scheme=scheme)
    assert (brightness(one) > 127) == (scheme == "light")
    one.locator("#theme").click()
    assert (brightness(one) > 127) == (scheme == "dark")
    one.reload()
    assert (brightness(one) > 127) == (scheme == "dark")


def test_5000_transfers_sort_filter_and_show_within_seconds_in_under_8_mb(opened, files):
    assert files[COUNT].stat().st_size < MOST_BYTES
    one = opened(COUNT)
    assert grid(one).locator("tbody tr:not(.detail)").count() == 200
    seconds = one.evaluate(
        """() => {
        const grid = [...document.querySelectorAll(".grid")].find((one) => one.querySelector("caption").textContent.includes("of transfers alike"));
        const timed = (act) => { const start = performance.now(); act(); void document.body.offsetHeight; return (performance.now() - start) / 1000; };
        const find = grid.querySelector("input");
        const sort = timed(() => grid.querySelectorAll("thead button")[9].click());
        const filter = timed(() => { find.value = "layers_4 gather"; find.dispatchEvent(new Event("input", { bubbles: true })); });
        return { sort, filter };
    }"""
    )
    assert max(seconds.values()) < MOST_SECONDS, seconds
    assert 0 < grid(one).locator("tbody tr:not(.detail)").count() <= 200


def test_all_rows_show_where_they_are_asked_for(opened):
    one = opened(COUNT)
    grid(one).get_by_label("Find").fill("all_gather layers_4")
    found = len([t for t in ledger(COUNT).transfers if t.kind == "all_gather" and "layers_4" in t.scope])
    assert grid(one).locator("tbody tr:not(.detail)").count() == 200 < found
    grid(one).get_by_role("button", name=f"Show all {found} rows").click()
    assert grid(one).locator("tbody tr:not(.detail)").count() == found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_page_and_words_stand_out(opened, tmp_path, width, scheme):
    one = opened(width=width, scheme=scheme)
    assert one.evaluate("document.documentElement.scrollWidth") <= width
    assert one.evaluate(_LEAST_CONTRAST) >= 4.5
    folder = Path(SCREENSHOTS) if SCREENSHOTS else tmp_path
    picture = folder / f"report-{width}-{scheme}.png"
    one.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 20_000


JUPYTER = """:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th,
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon tr { text-align: right; }"""


def test_in_jupyter_words_are_aligned_left_and_numbers_right(browser):
    one = browser.new_page()
    one.set_content(f'<style>{JUPYTER}</style><div class="jp-RenderedHTMLCommon">{ledger()._repr_html_()}</div>')
    aligned = one.evaluate(
        "(tag) => [...document.querySelectorAll(tag)].map((cell) => [cell.className, getComputedStyle(cell).textAlign])",
        "th, td",
    )
    assert {(name, side) for name, side in aligned} == {("", "left"), ("number", "right")}
    one.close()


# WCAG's ratio, the least of all texts against the paper behind them.
_LEAST_CONTRAST = """() => {
    const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const parsed = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const light = (colour) => { const [r, g, b] = parsed(colour).map(channel); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const paper = (one) => {
        const colour = getComputedStyle(one).backgroundColor;
        return colour.endsWith(", 0)") || colour === "transparent" ? paper(one.parentElement) : colour;
    };
    const texts = [...document.querySelectorAll("main *")].filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    const ratios = texts.filter((one) => one.tagName !== "title").map((one) => {
        const style = getComputedStyle(one), ink = light(one.ownerSVGElement ? style.fill : style.color), back = light(paper(one));
        return (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    });
    return Math.min(...ratios);
}"""


MANY, LATER = 100_000, "</script><script>document.title = 'ran'</script><!-- <b>"


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """A table of 100,000 rows that are all different, one of them with a hostile name."""
    names = [f"layers_{row}/mlp" for row in range(MANY - 1)] + [LATER]
    columns = [
        Column("kind", ["all_gather", "all_reduce"] * (MANY // 2), is_choice=True),
        numbers("wire a step", [f"{row:,} B" for row in range(MANY)], range(MANY), is_summed=True),
        Column("scope", names, is_path=True),
    ]
    grid = table("Many", columns, is_sortable=True, details=[[f"site {name}"] for name in names])
    path = tmp_path_factory.mktemp("many") / "many.html"
    path.write_text(document("many", Verdict("many", ()), [Part("rows", (Section("Many", grid),))]), encoding="utf-8")
    return path


def test_100_000_different_rows_open_in_seconds_and_are_built_as_they_are_asked_for(browser, many):
    assert many.stat().st_size < 12_000_000
    one = browser.new_page()
    one.goto(many.as_uri())
    milliseconds = one.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    rows = one.locator("tbody tr:not(.detail)")
    assert milliseconds < 10_000 and rows.count() == 200
    assert one.locator("output").text_content() == "100,000 rows, wire a step 5 GB"
    one.get_by_role("button", name="wire a step").click()
    assert rows.nth(0).text_content().split() == ["all_reduce99,999", f"B{LATER}".split(" ")[0], *LATER.split(" ")[1:]]
    assert one.title() == "many" and one.locator("script").count() == 2
    rows.nth(0).locator("summary").click()
    assert one.locator("tr.detail").nth(0).text_content() == f"site {LATER}"
    one.get_by_role("button", name="Show 2,000 more of 100,000 rows").click()
    assert rows.count() == 2200
    one.get_by_label("Find").fill("layers_99 9/mlp")
    assert rows.count() == 1 + 1 + 10 + 99
    one.get_by_label("kind").select_option("all_gather")
    one.get_by_label("Find").fill("layers_77776/")
    assert [row.text_content() for row in rows.all()] == ["all_gather77,776 Blayers_77776/mlp"]
    one.close()
