//! `sprag token`: who may call a server.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, ServerArgs, segment};
use crate::output::{Failure, Output};
use crate::table::Table;

/// Arguments of `sprag token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print its text, this once.
    #[command(after_help = "\
Example:
  sprag token create --scope submit,read --tenant acme --label shop --expires-s 86400")]
    Create(CreateArgs),
    /// List tokens, without their texts.
    List,
    /// Take a token back, for good.
    Revoke {
        /// The token's id.
        token_id: String,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Of submit, work, read, admin.
    #[arg(long, value_delimiter = ',', required = true)]
    scope: Vec<String>,
    /// For this tenant only; not with admin. With work it is handed this tenant's steps alone.
    #[arg(long)]
    tenant: Option<String>,
    /// What it is for.
    #[arg(long, default_value = "")]
    label: String,
    /// Accepted for so many seconds; for ever if not given.
    #[arg(long, value_name = "SECONDS")]
    expires_s: Option<u64>,
}

/// Runs `sprag token`.
pub fn run(args: &TokenArgs, output: &mut Output) -> Result<(), Failure> {
    let client = Client::find(&args.server)?;
    match &args.command {
        TokenCommand::Create(new) => {
            let body = json!({
                "scopes": new.scope, "tenant_id": new.tenant, "label": new.label,
                "lifetime_ms": new.expires_s.map(|seconds| seconds.saturating_mul(1_000)),
            });
            let made = client.call("POST", "/v1/tokens", body.to_string().as_bytes())?;
            if output.is_json() {
                return output.json(&made);
            }
            output.line(made["token"].as_str().unwrap_or_default())
        }
        TokenCommand::List => {
            let list = client.call("GET", "/v1/tokens", b"")?;
            if output.is_json() {
                return output.json(&list);
            }
            let mut table = Table::new(["TOKEN", "STATE", "SCOPES", "TENANT", "LABEL"]);
            for token in list["items"].as_array().into_iter().flatten() {
                table.row(cells(token));
            }
            table.print(output)
        }
        TokenCommand::Revoke { token_id } => {
            let token = client.call("DELETE", &format!("/v1/tokens/{}", segment(token_id)), b"")?;
            if output.is_json() {
                return output.json(&token);
            }
            output.line(cells(&token).join("  "))
        }
    }
}

fn cells(token: &Value) -> [String; 5] {
    let text = |field: &str| token[field].as_str().unwrap_or("-").to_owned();
    let scopes: Vec<&str> =
        token["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let state = if token["revoked_at"].is_u64() { "revoked" } else { "accepted" };
    [text("token_id"), state.to_owned(), scopes.join(","), text("tenant_id"), text("label")]
}
