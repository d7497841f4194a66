# SPDX-License-Identifier: Apache-2.0
"""Attacks on seals: alignment of all codes without the key, and key recovery from known pairs."""
