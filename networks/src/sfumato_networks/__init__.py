# SPDX-License-Identifier: Apache-2.0
"""Trained networks of Sfumato's attacks: safetensors files beside this one, read by ``sfumato.inversion``."""
