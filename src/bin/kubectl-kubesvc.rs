//! Starts `kubectl-kubesvc`, which kubectl finds as its plugin `kubectl kubesvc`.

fn main() -> std::process::ExitCode {
    kubesvc_plugin::main(kubesvc::program_settings())
}
