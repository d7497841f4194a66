# SPDX-License-Identifier: Apache-2.0
"""Auditing: what recipes keep of matching and what they leak, measured task by task, kept as records."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "AuditProtocol": "run",
        "FrontierPoint": "reference",
        "HomographyProtocol": "matching",
        "LeakageJob": "leakage",
        "LeakageProtocol": "leakage",
        "Sample": "task",
        "Task": "task",
        "Toolbox": "toolbox",
        "audit": "run",
        "digest_data": "task",
        "evaluate_homography": "matching",
        "evaluate_leakage": "leakage",
        "group_by_seed": "tables",
        "load_records": "runner",
        "make_table": "tables",
        "read_frontier": "reference",
        "reference_frontier": "reference",
        "run_audit": "run",
        "run_task": "runner",
    },
)
