"""What the fuzzer is told about this server, so that it meets more than the absence of things: ids that are there, a
request type that has a protocol, the names of an attempt; and not to wait for work that nobody has."""

import os
import random

import schemathesis

KNOWN = {
    "/v1/jobs/": os.environ["KNOWN_JOB"],
    "/v1/requests/": os.environ["KNOWN_REQUEST"],
    "/v1/protocols/": "reader.v1",
    "/v1/services/": "reader",
}
CALLBACK = dict(zip(("jobId", "lease_token", "lease_id"), os.environ["KNOWN_CALLBACK"].split()))
CALLBACK |= {"stepId": "only", "attempt_no": 1, "branch": "0", "turn": 0, "step_index": 0}
FITTING = {
    "/v1/commands": {"tenant_id": "t1", "request_type": "READER"},
    "/v1/requests": {"tenant_id": "t1", "request_type": "READER"},
    "/v1/claim": {"services": ["reader"]},
    "/v1/tokens": {"scopes": ["read"]},
    "/v1/callbacks/ack": CALLBACK,
    "/v1/callbacks/heartbeat": CALLBACK,
    "/v1/callbacks/input": CALLBACK,
    "/v1/callbacks/result": CALLBACK,
    "/v1/requests/{id}/retry": {"run_no": 1},
}
chance = random.Random(7)


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    known = [id for path, id in KNOWN.items() if context.operation.path.startswith(path)]
    if known and path_parameters and "id" in path_parameters and chance.random() < 0.6:
        return path_parameters | {"id": known[0]}
    return path_parameters


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("wait_s"), int):
        body = body | {"wait_s": min(body["wait_s"], 0)}
    if chance.random() < 0.6:
        body = body | FITTING.get(context.operation.path, {})
    return body
