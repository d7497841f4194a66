# SPDX-License-Identifier: Apache-2.0
"""Frontier of recipes: what they keep of matching and maps, against the worst of all attacks."""
