# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/released.py: what a curious server learns of what is sent."""
