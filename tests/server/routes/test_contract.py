# SPDX-License-Identifier: Apache-2.0
"""The contract: schemathesis asks every route of the OpenAPI document, in order and out of order, for server errors.

Slow, and skipped where schemathesis is not installed: pip install schemathesis==4.32.5
"""

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
EXAMPLES = 40


def test_every_route_keeps_the_contract(
    live: ModuleType, connect: Any, generous: dict[str, Any], scene: Any, tmp_path: Path
):
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis==4.32.5")
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    from sfumato.store.frames import MEDIA_TYPE, RELEASE_TYPE, encode_frame, encode_release

    checks = [
        not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance
    ]  # fmt: skip
    bare = encode_frame(scene.photo(0.0).without_positions())
    frames = st.sampled_from([scene.frame(0.0), scene.frame(0.5), bare, b"", b"sfumato-features"])
    schemathesis.openapi.media_type(MEDIA_TYPE, frames | st.binary(max_size=300))
    positions = st.sampled_from([encode_release(np.arange(3), np.ones((3, 2))), b""]) | st.binary(max_size=60)
    schemathesis.openapi.media_type(RELEASE_TYPE, positions)
    limits = {**generous, "query_seconds": 2.0, "job_seconds": 20.0}
    with live.start_server(tmp_path / "data", limits=limits) as server:
        api = connect(server)
        for _ in range(2):
            api.push(api.put_place(), scene.photos(3))
        document = api.http.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=server.url)
        problems: list[str] = []
        headers = {"Authorization": f"Bearer {server.key}"}
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path == "/v1/jobs/{job}/events":
                continue  # a stream that does not end

            @given(case=operation.as_strategy())
            @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            def ask(case: Any) -> None:
                response = case.call(headers=headers, timeout=30)
                case.validate_response(response, checks=checks, headers=headers)

            try:
                ask()
            except BaseException as problem:
                problems.append(f"{operation.label}: {problem!r:.3000}")
        assert not problems, "\n".join(problems)
        assert api.http.get("/readyz").status_code == 200
        lines = api.http.get("/metrics").text.splitlines()
        answers = Counter[str]()
        for line in lines:
            match = re.match(r'sfumato_requests_total\{.*status="(\d)\d\d"\} (\S+)', line)
            if match and "/readyz" not in line:
                answers[match[1]] += int(float(match[2]))
        assert answers["2"] > 50
        assert answers["4"] > 300
        assert not answers["5"]
