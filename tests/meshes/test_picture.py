"""What a picture of a mesh shows, read back from its SVG."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from lab.meshes.axes import Axes
from lab.meshes.picture import mesh_svg

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> dict[int, str]:
    """Position to what is told of it."""
    titles = [title.text for title in ET.fromstring(svg).iter(f"{SVG}title")]
    return {int(re.match(r"position (\d+): ", title)[1]): title.partition(": ")[2] for title in titles}


@pytest.mark.parametrize(
    "mesh", ["data=8", "data=2,tensor=4", "data=2,fsdp=2,tensor=2", "data=2,fsdp=2,pipe=2,context=2,tensor=2"]
)
def test_every_device_of_a_small_mesh_has_a_box_at_its_coordinates(mesh):
    axes = Axes.parse(mesh)
    places = {
        rank: ", ".join(f"{name}={i}" for name, i in zip(axes.names, axes.coordinates(rank), strict=True))
        for rank in range(axes.size)
    }
    assert boxes(mesh_svg(axes.shape)) == places


def test_a_mesh_of_16384_keeps_its_first_and_last_device_in_few_boxes():
    found = boxes(mesh_svg({"data": 16, "pipe": 16, "fsdp": 8, "tensor": 8}))
    assert {0, 16383} <= set(found) and len(found) <= 256


def test_devices_of_one_host_share_a_colour_that_neighbours_do_not_have():
    svg = mesh_svg({"data": 2, "tensor": 4}, np.arange(8) // 4)
    colours = re.findall(r"fill:(light-dark\(.*?\)\))", svg)
    assert [colours.count(colour) for colour in dict.fromkeys(colours)] == [4, 4]
    assert boxes(svg)[5] == "data=1, tensor=1, host 1"


def test_panels_do_not_overlap_and_stay_inside_the_picture():
    root = ET.fromstring(mesh_svg({"pipe": 2, "data": 2, "fsdp": 3, "tensor": 2}))
    panels = [
        tuple(map(float, re.match(r"translate\((\S+) (\S+)\)", g.get("transform")).groups()))
        for g in root.findall(f"{SVG}g")
    ]
    width, height = (float(root.get(name)) for name in ("width", "height"))
    xs, ys = sorted({x for x, _ in panels}), sorted({y for _, y in panels})
    title = 8 * len("pipe=0, data=0")
    assert len(panels) == 4 and xs[1] - xs[0] > title and xs[1] + title < width and ys[1] + 3 * 22 < height


def test_axes_show_themselves_in_a_notebook():
    axes = Axes.parse("data=2,fsdp=2,tensor=2")
    assert axes._repr_html_() == mesh_svg(axes.shape)
