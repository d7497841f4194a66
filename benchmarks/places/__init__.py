# SPDX-License-Identifier: Apache-2.0
"""Parts of the benchmark of key recovery: photos of one place laid over one another by positions, and their pairs."""
