# SPDX-License-Identifier: Apache-2.0
"""Matching of concealed features: two images, or the image pairs of an archive."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Codebook": "codebook",
        "MatchFile": "match_file",
        "MatchOutcome": "batch",
        "MatchParams": "mutual",
        "PairChoice": "retrieval",
        "PairList": "pairs",
        "TlsFiles": "executors",
        "choose_pairs": "retrieval",
        "dask_cluster": "executors",
        "exhaustive": "pairs",
        "load_codebook": "codebook",
        "load_matches": "match_file",
        "local_processes": "executors",
        "match": "mutual",
        "match_archive": "batch",
        "match_pairs": "batch",
        "nearest": "mutual",
        "read_pairs": "pairs",
        "sequential": "pairs",
    },
)
