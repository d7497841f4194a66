# SPDX-License-Identifier: Apache-2.0
"""COLMAP's camera models: their names in the order of COLMAP's numbers, and their parameters in order.

Knows words and counts; what a model does to a ray is COLMAP's business.
"""

CAMERA_MODELS: dict[str, tuple[str, ...]] = {
    name: tuple(parameters.split())
    for name, parameters in {
        "SIMPLE_PINHOLE": "f cx cy",
        "PINHOLE": "fx fy cx cy",
        "SIMPLE_RADIAL": "f cx cy k",
        "RADIAL": "f cx cy k1 k2",
        "OPENCV": "fx fy cx cy k1 k2 p1 p2",
        "OPENCV_FISHEYE": "fx fy cx cy k1 k2 k3 k4",
        "FULL_OPENCV": "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6",
        "FOV": "fx fy cx cy omega",
        "SIMPLE_RADIAL_FISHEYE": "f cx cy k",
        "RADIAL_FISHEYE": "f cx cy k1 k2",
        "THIN_PRISM_FISHEYE": "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1",
        "RAD_TAN_THIN_PRISM_FISHEYE": "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3",
        "SIMPLE_DIVISION": "f cx cy k",
        "DIVISION": "fx fy cx cy k",
        "SIMPLE_FISHEYE": "f cx cy",
        "FISHEYE": "fx fy cx cy",
        "EUCM": "fx fy cx cy alpha beta",
        "EQUIRECTANGULAR": "w h",
    }.items()
}
"""Parameters by the name of the model; those that begin with f are focal lengths in pixels."""
