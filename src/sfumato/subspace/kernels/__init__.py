# SPDX-License-Identifier: Apache-2.0
"""Compiled code of the exact search. docs/explanation/exact_search.md explains how it works and how to change it."""
