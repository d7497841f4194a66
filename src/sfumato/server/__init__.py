# SPDX-License-Identifier: Apache-2.0
"""The server of the service: places, images, maps, localization, jobs and a page, of concealed features alone.

Nothing here can load what makes or reads clear features (``guard``). Started by ``python -m sfumato.server``.
"""
