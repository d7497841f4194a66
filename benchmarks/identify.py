# SPDX-License-Identifier: Apache-2.0
"""Identification among many concealed templates, against faiss flat on the clear embeddings.

    python benchmarks/identify.py --recipes sealed-2048:1 --people 1000000 --threads 2 --probes 1 64 --json out.json
    python benchmarks/identify.py --recipes random-2 hybrid-2 --json out.json

The clear embeddings are those of UTKFace (with SFUMATO_DATA, else made-up ones), the rest drawn from their Gaussian fit
and scaled to unit norm; probes are embeddings with a little noise. Sealed templates are bits under one key for all, and
faiss.IndexBinaryFlat searches the same bits. All searches are exact, in the same run, on the same threads; templates
are prepared and indexes are filled before the clock starts. "same" is the share of probes whose nearest is the person
they are made from. Draws are replayed from the seed: evaluations only.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, interleaved, load_average, note, pinned_threads

from sfumato.concealment.faces import build_face_decoys, conceal_embeddings
from sfumato.errors import EvaluationOnlyWarning
from sfumato.faces.decide import Identifier
from sfumato.features.embeddings import read_embeddings
from sfumato.types.clear import Embeddings, unit_rows
from sfumato.types.concealed import Bits, ConcealedTemplates

DECOYS = 2000
NOISE = 0.02
NEAREST = 5
AT_ONCE = 20_000


def real_faces(small: bool) -> np.ndarray:
    """Return the clear embeddings (N, n) of UTKFace, or made-up ones."""
    folder = data_folder()
    if folder is None or small:
        return unit_rows(np.random.default_rng(1).normal(size=(300, 64)))
    return read_embeddings(folder / "faces" / "utkface_arcface.npz", "arcface").values


def gallery_of(faces: np.ndarray, people: int, rng: np.random.Generator) -> np.ndarray:
    """Return the faces, and as many more as there are to be people from their Gaussian fit, in unit norm."""
    if people <= len(faces):
        return faces[:people]
    factor = np.linalg.cholesky(np.cov(faces.T.astype(np.float64)) + 1e-9 * np.eye(faces.shape[1])).astype(np.float32)
    mean, gallery = faces.mean(axis=0), np.empty((people, faces.shape[1]), np.float32)
    gallery[: len(faces)] = faces
    for start in range(len(faces), people, AT_ONCE):
        block = gallery[start : start + AT_ONCE]
        block[:] = unit_rows(rng.standard_normal(block.shape, np.float32) @ factor.T + mean)
    return gallery


def conceal_all(faces: np.ndarray, recipe: str, seed: int) -> ConcealedTemplates:
    """Seal or lift the faces; decoys are other draws than the gallery."""
    rng = np.random.default_rng([seed, 2])
    decoys = build_face_decoys(Embeddings(unit_rows(faces[:DECOYS] + 0.05 * rng.normal(size=faces[:DECOYS].shape))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return conceal_embeddings(Embeddings(faces), recipe, decoys, evaluation_seed=seed)


def measure(
    faces: np.ndarray, templates: ConcealedTemplates, peers: dict[str, Any], probes: int, args: Any
) -> dict[str, Any]:
    """Time all searches of one number of probes in turn."""
    rng = np.random.default_rng([args.seed, probes])
    who = rng.integers(0, len(faces), probes)
    asked = unit_rows(faces[who] + NOISE * rng.normal(size=(probes, faces.shape[1])))
    identifier = Identifier(templates, threads=args.threads)
    question: Any = asked
    works: dict[str, Callable[[], Any]] = {"faiss": lambda: peers["faiss"].search(asked, NEAREST)}
    if isinstance(templates.code, Bits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            question = conceal_embeddings(Embeddings(asked), templates.recipe, evaluation_seed=args.seed)
        works["faiss binary"] = lambda: peers["faiss binary"].search(question.code.packed, NEAREST)
    works["sfumato"] = lambda: identifier.search(question, NEAREST)
    with pinned_threads(args.threads):
        times = interleaved(works, args.repeats)
    nearest = {"sfumato": identifier.search(question, NEAREST)[1]}
    nearest |= {name: works[name]()[1] for name in works if name != "sfumato"}
    row = {"recipe": str(templates.recipe), "people": len(faces), "probes": probes}
    for name, taken in times.items():
        row[f"{name} ms"] = 1000 * taken / probes
        row["same" if name == "sfumato" else f"{name} same"] = float((nearest[name][:, 0] == who).mean())
    row |= {f"ratio to {name}": times["sfumato"] / times[name] for name in times if name != "sfumato"}
    return row


def peers_of(faces: np.ndarray, templates: ConcealedTemplates) -> dict[str, Any]:
    """Return faiss's exact indexes: of the clear embeddings and, for bits, of the same bits."""
    import faiss

    flat = faiss.IndexFlatL2(faces.shape[1])
    flat.add(faces)
    peers = {"faiss": flat}
    if isinstance(templates.code, Bits):
        peers["faiss binary"] = faiss.IndexBinaryFlat(templates.code.ambient_dim)
        peers["faiss binary"].add(templates.code.packed)
    return peers


def main() -> int:
    """Measure."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--probes", type=int, nargs="+", default=[1, 64, 1000])
    parser.add_argument("--recipes", nargs="+", default=["sealed-2048:1", "random-2", "hybrid-2"])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.small:
        args.people, args.probes, args.recipes = min(args.people, 500), [1, 8], args.recipes[:2]
    load_average()
    faces = gallery_of(real_faces(args.small), args.people, np.random.default_rng(args.seed))
    rows = []
    for recipe in args.recipes:
        note(f"concealing {len(faces)} faces with {recipe}")
        templates = conceal_all(faces, recipe, args.seed)
        peers = peers_of(faces, templates)
        rows += [measure(faces, templates, peers, probes, args) for probes in args.probes]
    sizes = {"people": args.people, "probes": args.probes, "dims": int(faces.shape[1]), "threads": args.threads}
    finish("identify", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
