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
    """A list is sent line by line, and is answered so."""
    global connection
    if connection is None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    in_lines = isinstance(body, list)
    text = "\n".join(map(json.dumps, body)) if in_lines else json.dumps(body)
    kind = "application/x-ndjson" if in_lines else "application/json"
    connection.request(method, path, text, {"Authorization": "Bearer " + TOKEN, "Content-Type": kind})
    answer = connection.getresponse()
    said = answer.read()
    if in_lines and answer.status == 200:
        said = [json.loads(line) for line in said.splitlines()]
        # An answer that was cut off between two lines is none.
        if len(said) != len(body):
            raise ValueError("lines are missing")
        return 200, said
    return answer.status, json.loads(said)


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


def envelope(key, request_type="PAGES"):
    return {"tenant_id": "t1", "request_type": request_type, "schema_version": "1", "input_ref": "in",
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


def bulk():
    number = 0
    while not is_over():
        number += 1
        keys = [f"{NAME}-{number}-{line}" for line in range(5)]
        status, lines = insist("POST", "/v1/commands", [envelope(key) for key in keys])
        if not expect(status, lines, 200):
            return
        for key, line in zip(keys, lines):
            if "jobId" in line:
                note("submit", key=key, jobId=line["jobId"])
            elif line.get("status", 0) < 500:
                note("wrong", why="line", answer=line)


def signal():
    number = 0
    while not is_over():
        number += 1
        status, job = insist("POST", "/v1/commands", envelope(f"{NAME}-{number}", "WAITS"))
        if not expect(status, job, 202):
            return
        path = f"/v1/jobs/{job['jobId']}/signals/go"
        said = {"signal_id": f"{NAME}-{number}", "payload": {"nonce": str(uuid.uuid4())}}
        status, answer = insist("POST", path, said)
        if not expect(status, answer, 202):
            return
        note("signal", jobId=job["jobId"], signal_id=said["signal_id"], payload=said["payload"])
        status, again = insist("POST", path, said)
        if status != 202 or again["created"]:
            note("wrong", why="repeated signal", status=status, answer=again)


def keep():
    """What is no job: schedules and tokens, every other one of which goes again."""
    number = 0
    while not is_over():
        number += 1
        name, goes = f"{NAME}-{number}", number % 2 == 0
        body = {"schedule_id": name, "cron": "0 0 1 1 *", "envelope": envelope(name)}
        status, answer = insist("POST", "/v1/schedules", body)
        if expect(status, answer, 200) and goes:
            # A repeat finds that it is gone.
            expect(*insist("DELETE", "/v1/schedules/" + name, {}), 200, 404)
        note("schedule", name=name, goes=goes)
        status, answer = insist("POST", "/v1/tokens", {"scopes": ["read"], "label": name})
        if not expect(status, answer, 201):
            return
        if goes:
            expect(*insist("DELETE", "/v1/tokens/" + answer["token_id"], {}), 200)
        note("token", token_id=answer["token_id"], goes=goes)


{"submit": submit, "work": work, "request": request, "bulk": bulk, "signal": signal, "keep": keep}[ROLE]()
