# SPDX-License-Identifier: Apache-2.0
"""A client of the service: concealed features to a server, maps and poses from it. Needs the extra ``client``.

Names that people chose never leave the device (``names``), clear features are refused before anything is sent, and the
key of an API is shown nowhere.
"""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Client": "places",
        "JobState": "answers",
        "MapJob": "jobs",
        "MapSummary": "answers",
        "NameTable": "names",
        "Place": "places",
        "PlaceSummary": "answers",
        "PushOutcome": "uploads",
        "read_api_key": "settings",
    },
)
