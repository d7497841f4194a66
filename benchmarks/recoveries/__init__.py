# SPDX-License-Identifier: Apache-2.0
"""Parts of the recovery benchmark: what is attacked, maps and their tracks, the drawing."""
