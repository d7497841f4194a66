# SPDX-License-Identifier: Apache-2.0
"""Parts of the benchmark of chaff: photos, sources of chaff, attackers who tell it, what they paint, and its cost."""
