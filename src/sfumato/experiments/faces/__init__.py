# SPDX-License-Identifier: Apache-2.0
"""Face experiments: verification, attributes, releases and protection."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "AttributeProtocol": "attributes",
        "ProtectionProtocol": "protection",
        "ReleaseProtocol": "releases",
        "VerificationProtocol": "verification",
        "evaluate_attributes": "attributes",
        "evaluate_protection": "protection",
        "evaluate_releases": "releases",
        "evaluate_verification": "verification",
        "linkability": "protection",
        "read_face_decoys": "lifting",
        "receiver_curve": "verification",
    },
)
