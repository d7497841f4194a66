# SPDX-License-Identifier: Apache-2.0
"""Identification among many concealed templates, point to subspace, against faiss flat on the clear embeddings.

    python benchmarks/identify.py --json out.json          # real faces with SFUMATO_DATA, made-up ones without

The clear embeddings are those of UTKFace, the rest drawn from their Gaussian fit and scaled to unit norm; probes are
embeddings with a little noise. Both searches are exact, in the same run, on the same threads; templates are prepared
and the index is filled before the clock starts. "same" is the share of probes whose nearest is the person they are
made from. Draws are replayed from the seed: evaluations only.
"""

import sys
import warnings
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, interleaved, load_average, note, pinned_threads

from sfumato.concealment.faces import build_face_decoys, conceal_embeddings
from sfumato.errors import EvaluationOnlyWarning
from sfumato.faces.decide import Identifier
from sfumato.features.embeddings import read_embeddings
from sfumato.types.clear import Embeddings, unit_rows
from sfumato.types.concealed import ConcealedTemplates

DECOYS = 2000
NOISE = 0.02


def real_faces(small: bool) -> np.ndarray:
    """Return the clear embeddings (N, n) of UTKFace, or made-up ones."""
    folder = data_folder()
    if folder is None or small:
        return unit_rows(np.random.default_rng(1).normal(size=(300, 64)))
    return read_embeddings(folder / "faces" / "utkface_arcface.npz", "arcface").values


def gallery_of(faces: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Return the faces, and as many more as are wanted from their Gaussian fit, in unit norm."""
    if wanted <= len(faces):
        return faces[:wanted]
    factor = np.linalg.cholesky(np.cov(faces.T.astype(np.float64)) + 1e-9 * np.eye(faces.shape[1]))
    drawn = rng.normal(size=(wanted - len(faces), faces.shape[1])) @ factor.T + faces.mean(axis=0)
    return np.concatenate([faces, unit_rows(drawn)])


def conceal_all(faces: np.ndarray, recipe: str, seed: int) -> ConcealedTemplates:
    """Lift the faces; decoys are other draws than the gallery."""
    rng = np.random.default_rng([seed, 2])
    decoys = build_face_decoys(Embeddings(unit_rows(faces[:DECOYS] + 0.05 * rng.normal(size=faces[:DECOYS].shape))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return conceal_embeddings(Embeddings(faces), recipe, decoys, evaluation_seed=seed)


def measure(faces: np.ndarray, templates: ConcealedTemplates, probes: int, args: Any) -> dict[str, Any]:
    """Time both searches of one number of probes in turn."""
    import faiss

    rng = np.random.default_rng([args.seed, probes])
    who = rng.integers(0, len(faces), probes)
    asked = unit_rows(faces[who] + NOISE * rng.normal(size=(probes, faces.shape[1])))
    index = faiss.IndexFlatL2(faces.shape[1])
    index.add(faces)
    identifier = Identifier(templates, threads=args.threads)
    with pinned_threads(args.threads):
        times = interleaved(
            {"sfumato": lambda: identifier.search(asked, 5), "faiss": lambda: index.search(asked, 5)}, args.repeats
        )
        found = identifier.search(asked, 5)[1], index.search(asked, 5)[1]
    return {
        "recipe": str(templates.recipe),
        "people": len(faces),
        "probes": probes,
        "sfumato ms": 1000 * times["sfumato"] / probes,
        "faiss ms": 1000 * times["faiss"] / probes,
        "ratio": times["sfumato"] / times["faiss"],
        "same": float((found[0][:, 0] == who).mean()),
        "faiss same": float((found[1][:, 0] == who).mean()),
    }


def main() -> int:
    """Measure."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--probes", type=int, nargs="+", default=[1, 64, 1000])
    parser.add_argument("--recipes", nargs="+", default=["random-2", "hybrid-2"])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.small:
        args.people, args.probes, args.recipes = min(args.people, 500), [1, 8], args.recipes[:1]
    load_average()
    faces = gallery_of(real_faces(args.small), args.people, np.random.default_rng(args.seed))
    rows = []
    for recipe in args.recipes:
        note(f"lifting {len(faces)} faces with {recipe}")
        templates = conceal_all(faces, recipe, args.seed)
        rows += [measure(faces, templates, probes, args) for probes in args.probes]
    sizes = {"people": args.people, "probes": args.probes, "dims": int(faces.shape[1]), "threads": args.threads}
    finish("identify", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
