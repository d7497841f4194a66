# SPDX-License-Identifier: Apache-2.0
"""Attacks on liftings: points of a subspace that are likely the clear descriptor."""
