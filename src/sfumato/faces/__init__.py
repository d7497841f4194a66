# SPDX-License-Identifier: Apache-2.0
"""Faces: galleries of concealed templates, on the device that sees the people and on the server that does not."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "CalibrateParams": "calibration",
        "Candidate": "decide",
        "Decision": "decide",
        "Enrollment": "enrollment",
        "Gallery": "gallery",
        "GalleryFacts": "gallery",
        "GalleryWriter": "gallery_file",
        "Identification": "decide",
        "Identifier": "decide",
        "PersonKeys": "probe",
        "Threshold": "compare",
        "calibrate": "calibration",
        "enroll": "enrollment",
        "identify": "probe",
        "judge": "third_party",
        "load_gallery": "gallery_file",
        "make_probe": "probe",
        "pack_probe": "third_party",
        "pack_template": "third_party",
        "read_faces": "probe",
        "renew": "enrollment",
        "revoke": "enrollment",
        "serve": "third_party",
        "verify": "probe",
        "verify_probe": "decide",
    },
)
