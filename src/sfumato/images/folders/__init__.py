# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures with ground truth, in the layouts people already have; each is checked before it is used."""

from sfumato.images.folders.aachen import Aachen, Queries, read_aachen_folder, thresholds, write_submission
from sfumato.images.folders.colmapmodel import read_colmap_model
from sfumato.images.folders.ground import HomographySequence, PosedImages
from sfumato.images.folders.hpatches import read_homography_folder
from sfumato.images.folders.landmarkbenchmark import LandmarkScene, read_landmark_folder
from sfumato.images.folders.posed import read_posed_folder

__all__ = [
    "Aachen",
    "HomographySequence",
    "LandmarkScene",
    "PosedImages",
    "Queries",
    "read_aachen_folder",
    "read_colmap_model",
    "read_homography_folder",
    "read_landmark_folder",
    "read_posed_folder",
    "thresholds",
    "write_submission",
]
