# SPDX-License-Identifier: Apache-2.0
"""Compiled code of the exact search. docs/explanation/kernels.md explains how it works and how to change it."""
