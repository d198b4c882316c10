"""Eight fake CPU devices for every test, asked for before JAX starts."""

from meshes.targets import parse_target, prepare

prepare([parse_target("cpu:8")])
