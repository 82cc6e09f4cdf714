//! The `sprag` binary.

use mimalloc::MiMalloc;

/// Rows become values on one thread and are freed on another, in groups of hundreds: the system's allocator takes a
/// third of an engine's time for that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    sprag::run(std::env::args_os())
}
