# SPDX-License-Identifier: Apache-2.0
"""Files that appear completely or not at all, and arrays read from files that nobody trusts."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "check_output": "atomic",
        "file_lock": "atomic",
        "load_checkpoint": "tensors",
        "load_tensors": "tensors",
        "new_folder": "atomic",
        "read_npz": "npz",
        "save_checkpoint": "tensors",
        "save_tensors": "tensors",
        "write_file": "atomic",
        "write_text": "atomic",
    },
)
