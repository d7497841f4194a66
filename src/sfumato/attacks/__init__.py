# SPDX-License-Identifier: Apache-2.0
"""Attacks: what can be recovered of concealed features, by whom, and with which knowledge."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ATTACKS": "registry",
        "Attack": "registry",
        "AttackId": "registry",
        "Companions": "knowledge",
        "Knowledge": "knowledge",
        "KnownPairs": "knowledge",
        "Materials": "run",
        "Recovery": "knowledge",
        "applicable_attacks": "registry",
        "attack": "inputs",
        "attack_archive": "run",
        "companions_from_archive": "run",
        "companions_from_matches": "run",
        "companions_from_model": "run",
        "load_decoder": "encoded",
        "run_attack": "registry",
        "score_recovery": "run",
    },
)
