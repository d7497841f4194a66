# SPDX-License-Identifier: Apache-2.0
"""Which commands there are, in which module each is, and how --help groups them.

Modules are named here and imported when they are needed: a command starts without the libraries of all others.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

AS_IT_WAS, NOTHING_CHANGED, NOTHING_WRITTEN = "the gallery is as it was", "nothing was changed", "nothing was written"
INDEX_AS_IT_WAS = "the index is as it was"
CONCEALED = "what was finished is kept beside the archive; run the same command again, without --overwrite, to go on"
MATCHED = (
    "the pairs matched so far are kept beside the output; run the same command again, without --overwrite, to go on"
)
MEASURED = "what was measured is kept in the output folder; run the same command again, without --overwrite, to go on"
LEARNED = "what was learned is kept beside the output; run the same command again with --resume to go on"


@dataclass(frozen=True, slots=True)
class Command:
    """``words`` as they are typed, the ``module`` of ``sfumato.cli`` and the ``function`` in it, and what is said when
    it is ``interrupted``."""

    words: str
    module: str
    function: str
    interrupted: str

    @property
    def group(self) -> str:
        """The group that the command is of, or nothing."""
        return self.words.rpartition(" ")[0]

    @property
    def name(self) -> str:
        """Its name within the group."""
        return self.words.rpartition(" ")[2]

    def load(self) -> Any:
        """Import the module, and return the function."""
        return getattr(import_module(f"sfumato.cli.{self.module}"), self.function)

    @property
    def help(self) -> str:
        """What --help tells: the docstring of the function, as the terminal is to wrap it."""
        return flowed(self.load().__doc__ or "")


def flowed(text: str) -> str:
    """Return a text with a line a paragraph; examples, and lines that are indented or of a list, stay as they are.

    >>> flowed("It does this\\nand that.\\n\\nExample: a\\nExample: b")
    'It does this and that.\\n\\nExample: a\\nExample: b'
    """
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if lines and _flows(lines[-1]) and _flows(line):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _flows(line: str) -> bool:
    return bool(line) and not line.startswith((" ", "- ", "* ", "Example"))


COMMANDS = (
    Command(
        "audit", "audit", "run", "what was measured is kept beside the report; run the same command again to go on"
    ),
    Command("extract", "extract", "run", NOTHING_WRITTEN),
    Command("conceal", "conceal", "run", CONCEALED),
    Command("match", "match", "run", MATCHED),
    Command("map", "map", "run", "nothing was written; a map that was there is as it was"),
    Command("enroll", "enroll", "run", AS_IT_WAS),
    Command("renew", "enroll", "renew", AS_IT_WAS),
    Command("revoke", "enroll", "revoke", AS_IT_WAS),
    Command("calibrate", "calibrate", "run", AS_IT_WAS),
    Command("verify", "verify", "run", NOTHING_CHANGED),
    Command("identify", "identify", "run", NOTHING_CHANGED),
    Command("inspect", "inspect", "run", NOTHING_CHANGED),
    Command("decoys build", "decoys", "build", NOTHING_WRITTEN),
    Command("evaluate homography", "evaluate", "homography", MEASURED),
    Command("evaluate map", "evaluate", "map_", MEASURED),
    Command("evaluate localize", "evaluate", "localize", MEASURED),
    Command("evaluate leakage", "leakage", "leakage", MEASURED),
    Command("evaluate patches", "evaluatepatches", "patches", MEASURED),
    Command("evaluate search", "evaluatesearch", "search", MEASURED),
    Command("evaluate faces", "evaluatefaces", "faces", MEASURED),
    Command("evaluate attributes", "evaluatefaces", "attributes", MEASURED),
    Command("evaluate releases", "evaluatefaces", "releases", MEASURED),
    Command("evaluate protection", "evaluatefaces", "protection", MEASURED),
    Command("evaluate tradeoff", "tradeoff", "tradeoff", MEASURED),
    Command("evaluate frontier", "frontier", "frontier", MEASURED),
    Command("report", "report", "run", NOTHING_WRITTEN),
    Command("attack", "attack", "run", "the pictures painted so far are kept, the results are not"),
    Command("localize", "localize", "run", NOTHING_WRITTEN),
    Command("export hloc", "export", "hloc", NOTHING_WRITTEN),
    Command("export public", "export", "public", "nothing was published"),
    Command("index build", "index", "build", NOTHING_WRITTEN),
    Command("index search", "index", "search", NOTHING_WRITTEN),
    Command("index add", "index", "add", INDEX_AS_IT_WAS),
    Command("index remove", "index", "remove", INDEX_AS_IT_WAS),
    Command("invert", "invert", "run", NOTHING_WRITTEN),
    Command("train inverter", "train", "inverter", LEARNED),
    Command("train decoder", "traindecoder", "run", LEARNED),
    Command("train compress", "traincompress", "run", NOTHING_WRITTEN),
    Command("train pairs", "trainpairs", "run", NOTHING_WRITTEN),
    Command("train ninja", "trainninja", "run", LEARNED),
)

GROUPS = {
    "decoys": (
        "Decoy databases: real-looking descriptors that hide the clear ones.",
        "sfumato decoys build photos/ -o decoys.npz --size 65536",
        "sfumato conceal mine/ -o private.sfm.h5 --recipe sub-hybrid-2 --decoys decoys.npz",
    ),
    "evaluate": (
        "Measure what concealing keeps, costs and hides: records, a table and a figure.",
        "sfumato evaluate homography --recipes raw,sub-hybrid-2 -o results/",
        "sfumato evaluate leakage photos/ --recipes raw,sub-hybrid-2 -o leakage/",
    ),
    "export": (
        "Files for other programs, and what an owner chooses to publish.",
        "sfumato export hloc private.sfm.h5 matches.h5 -o hloc/",
    ),
    "index": (
        "Indexes of concealed features, asked for the nearest entries of others.",
        "sfumato index build private.sfm.h5 -o x.index",
        "sfumato index search x.index query.sfm.h5 -k 5 -o nearest.csv",
    ),
    "train": (
        "Networks that attack and encoders, learned from other people's photos.",
        "sfumato train inverter photos/ -o inverter.safetensors --minutes 15",
        "sfumato train ninja --patches photos/ --lambda 1.0 -o ninja-sift-1.0.safetensors",
    ),
}
"""What each group is for, and examples."""

PANELS = {
    "Start here": ("audit", "conceal", "inspect"),
    "On the device that owns the photos": ("extract", "decoys", "invert"),
    "On a server, with concealed features": ("match", "map", "localize", "index", "export"),
    "Faces": ("enroll", "verify", "identify", "calibrate", "renew", "revoke"),
    "Attacking and measuring": ("attack", "evaluate", "report", "train"),
}
"""How --help groups the commands; one that is new stands by itself until it is named here."""


def asked_for(arguments: Sequence[str]) -> tuple[Command, ...]:
    """Return the command that arguments name, none for --version, or all: for help, and for what is misspelt.

    >>> [command.words for command in asked_for(["-v", "index", "add", "x.index"])]
    ['index add']
    >>> len(asked_for(["--help"])) == len(asked_for(["indx"])) == len(COMMANDS)
    True
    """
    if "--version" in arguments:
        return ()
    named = [word for word in arguments if word not in ("-v", "--verbose")][:2]
    for count in (1, 2):
        found = tuple(command for command in COMMANDS if command.words == " ".join(named[:count]))
        if found and len(named) >= count:
            return found
    return COMMANDS
