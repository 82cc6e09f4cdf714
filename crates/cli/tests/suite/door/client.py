"""A client of a server that is killed again and again.

It does what a careful caller does: whatever was not answered is sent again as it was. Every answer of 2xx is noted
in its log, one line of JSON each, so that the test can ask afterwards whether all of them still hold; an answer to a
repeat that differs from the first is noted as wrong.
"""

import http.client, json, os, random, sys, time, uuid

ROLE, NAME, PORT, TOKEN, FOLDER = sys.argv[1:]
PORT = int(PORT)
random.seed(NAME)
connection = None
log = open(os.path.join(FOLDER, "said." + NAME), "a", buffering=1)


def note(kind, **facts):
    log.write(json.dumps({"kind": kind, **facts}) + "\n")


def is_over():
    return os.path.exists(os.path.join(FOLDER, "over"))


def once(method, path, body):
    global connection
    if connection is None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def insist(method, path, body):
    """Sends the same until it is answered."""
    global connection
    while True:
        try:
            status, answer = once(method, path, body)
            if status < 500 and status != 429:
                return status, answer
        except (OSError, http.client.HTTPException, ValueError):
            if connection is not None:
                connection.close()
            connection = None
        time.sleep(0.02)


def expect(status, answer, *wanted):
    if status not in wanted:
        note("wrong", why="status", status=status, answer=answer)
    return status in wanted


def envelope(key):
    return {"tenant_id": "t1", "request_type": "PAGES", "schema_version": "1", "input_ref": "in",
            "output_ref": "out", "payload": {"key": key}, "idempotency_key": key}


def submit():
    known = {}
    while not is_over():
        key = f"{NAME}-{len(known)}"
        status, answer = insist("POST", "/v1/commands", envelope(key))
        if not expect(status, answer, 202):
            return
        known[key] = answer["jobId"]
        note("submit", key=key, jobId=answer["jobId"])
        if len(known) % 4 == 0:
            key = random.choice(list(known))
            status, answer = insist("POST", "/v1/commands", envelope(key))
            if status != 202 or answer["jobId"] != known[key] or answer["created"]:
                note("wrong", why="repeated submit", status=status, answer=answer, first=known[key])
        if len(known) % 7 == 0:
            status, answer = insist("POST", f"/v1/jobs/{known[key]}/cancel", {})
            if expect(status, answer, 202):
                note("cancel", jobId=known[key], state=answer["state"])


NAMES = ("jobId", "stepId", "step_index", "branch", "turn", "attempt_no", "lease_id", "lease_token")


def work():
    while not is_over():
        claim = {"claim_id": str(uuid.uuid4()), "services": ["reader", "printer"], "max": 4, "wait_s": 1}
        status, answer = insist("POST", "/v1/claim", claim)
        if not expect(status, answer, 200):
            return
        for directive in answer["directives"]:
            report = {name: directive[name] for name in NAMES}
            if random.random() < 0.1:
                report |= {"status": "FAILED", "failure_class": "RETRYABLE", "error": {"code": "SHAKY"}}
            else:
                report |= {"status": "SUCCEEDED", "output": {"nonce": str(uuid.uuid4())}}
            status, answer = insist("POST", "/v1/callbacks/result", report)
            if not expect(status, answer, 200, 409) or status == 409:
                continue
            facts = {name: report.get(name) for name in ("jobId", "stepId", "attempt_no", "output")}
            note("result", **facts)
            if random.random() < 0.3:
                status, answer = insist("POST", "/v1/callbacks/result", report)
                if status != 200:
                    note("wrong", why="repeated result", status=status, answer=answer)


def request():
    number = 0
    while not is_over():
        number += 1
        body = {"tenant_id": "t1", "request_type": "PAGES", "inputs": {"fingerprint": f"{NAME}-{number}"},
                "requirement": "read it", "plan_revision": 1,
                "envelope": {"input_ref": "in", "output_ref": "out", "payload": {}, "schema_version": "1"}}
        status, answer = insist("POST", "/v1/requests", body)
        if not expect(status, answer, 200, 201, 202):
            return
        path = "/v1/requests/" + answer["requestId"]
        status, answer = insist("POST", path + "/draft", {})
        expect(status, answer, 200, 202)
        status, answer = insist("POST", path + "/confirm", {"run": True})
        if not expect(status, answer, 200, 202):
            return
        note("confirm", requestId=answer["requestId"], jobId=answer["jobId"])
        status, again = insist("POST", path + "/confirm", {"run": True})
        if status not in (200, 202) or again["jobId"] != answer["jobId"] or again["run_no"] != 1:
            note("wrong", why="repeated confirm", status=status, answer=again, first=answer["jobId"])


{"submit": submit, "work": work, "request": request}[ROLE]()
