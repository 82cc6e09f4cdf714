//! The `sprag` binary.

fn main() -> std::process::ExitCode {
    sprag::run(std::env::args_os())
}
