//! Requests and tokens.

use sprag_engine::ids::{JobId, RequestId};
use sprag_engine::requests::{NewRequest, RequestFacts, RequestStore, RequestView, RequestWrite};
use sprag_engine::tokens::{NewToken, Scope, TokenStore};
use sprag_kernel::RequestStatus;
use sprag_kernel::keys::Hash;

use super::Stage;

fn request() -> NewRequest {
    let request_id = RequestId::new();
    let name = request_id.to_string();
    let facts = RequestFacts {
        request_id,
        tenant_id: "t1".to_owned(),
        request_type: "TEST".to_owned(),
        key: Hash::of(name.as_bytes()),
        content: Hash::of(name.as_bytes()),
        inputs: "{}".to_owned(),
        requirement: String::new(),
        plan_revision: String::new(),
    };
    NewRequest { facts, envelope: "{}".to_owned() }
}

pub(super) async fn beside(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let of_request = |request: &NewRequest| {
        let id = request.facts.request_id;
        format!(
            "SELECT ROW(status, version, run_no, events, job_id IS NULL)::text FROM request
             WHERE request_id = '{id}'
             UNION ALL SELECT ROW(n, changes)::text FROM request_event WHERE request_id = '{id}'
             UNION ALL SELECT ROW(state, version, semaphore)::text FROM job
             WHERE job_id = (SELECT job_id FROM request WHERE request_id = '{id}') ORDER BY 1"
        )
    };
    let create = async |request: &NewRequest, _| cut.create_request(request.clone()).await;
    stage.survives("create_request", async || request(), create, of_request).await;
    let created = async || {
        let request = request();
        play.store().create_request(request.clone()).await.unwrap();
        request
    };
    // The first run of a request that stands ready; once it has begun there is nothing more to do.
    let run = async |request: &NewRequest, _| {
        let mut job = Stage::job("t1");
        let mut facts = (*job.facts).clone();
        facts.dedup_key = format!("r:{}:1", request.facts.request_id);
        job.facts = facts.into();
        let decide = Box::new(move |view: &RequestView| {
            let write = RequestWrite {
                stored: RequestStatus::Confirmed,
                version: view.version + 1,
                run_no: 1,
                draft: None,
                changes: vec!["R0>1 R1>2 R2>3 ".to_owned()],
                job: Some(job.clone()),
            };
            Ok(((view.run_no == 0).then_some(write), ()))
        });
        cut.amend_request(engine, request.facts.request_id, decide).await
    };
    stage.survives("amend_request", created, run, of_request).await;

    let token = async || {
        let token_id = JobId::new().to_string();
        let hash = Hash::of(token_id.as_bytes());
        let (scopes, label) = ([Scope::Work].into_iter().collect(), "test".to_owned());
        NewToken { token_id, hash, scopes, tenant_id: None, label, lifetime_ms: None }
    };
    let of_token = |token: &NewToken| {
        format!(
            "SELECT ROW(scopes, label, created_at, revoked_at)::text FROM token WHERE token_id = '{}'",
            token.token_id
        )
    };
    let put = async |token: &NewToken, _| cut.put_token(token.clone()).await;
    stage.survives("put_token", token, put, of_token).await;
    let kept = async || {
        let token = token().await;
        play.store().put_token(token.clone()).await.unwrap();
        token
    };
    let revoke = async |token: &NewToken, _| cut.revoke_token(&token.token_id).await;
    stage.survives("revoke_token", kept, revoke, of_token).await;
}
