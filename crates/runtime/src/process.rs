//! What a program's `main` does for the whole process: limits at its start, its last output, its exit code.

use std::io;
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::terminal;

/// Exit code of a usage or configuration error.
pub const USAGE: u8 = 2;
/// Exit code of any other failure that ends a program.
pub const FAILURE: u8 = 1;

/// Disables core dumps, including those that the system pipes to a program: kubeconfigs, tokens and keys are in
/// memory. As a result, another process of the same user can neither trace this one nor read its memory.
///
/// # Errors
/// Returns the error of the system call.
pub fn no_core_dumps() -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // RLIMIT_CORE does not apply to a pipe in /proc/sys/kernel/core_pattern.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}

/// Raises the soft limit on open files to the hard limit and returns it. Each connection is an open file, and the
/// usual soft limit of 1,024 exists for programs that use `select`.
///
/// # Errors
/// Returns the error of the system call; the limit is unchanged.
pub fn raise_open_files() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Prints the output of a command and returns its exit code. A closed pipe (`… | head`) is not an error.
pub fn say(program: &str, text: &str) -> ExitCode {
    match terminal::write(&mut io::stdout().lock(), text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(program, &format!("standard output cannot be written: {error}"), FAILURE)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints the one line that says why the program ends, and returns the exit code. Errors of standard error are
/// ignored.
pub fn complain(program: &str, reason: &str, code: u8) -> ExitCode {
    let _ = terminal::write(&mut io::stderr().lock(), &format!("{program}: {reason}"));
    ExitCode::from(code)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use nix::sys::prctl::get_dumpable;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::{no_core_dumps, raise_open_files};

    #[test]
    fn the_soft_bound_on_open_files_becomes_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is one");
        setrlimit(Resource::RLIMIT_NOFILE, hard - 1, hard).expect("every process may");
        assert_eq!(raise_open_files().expect("every process may"), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE), Ok((hard, hard)));
    }

    #[test]
    fn a_process_without_core_dumps_is_neither_dumpable_nor_may_it_write_one() {
        no_core_dumps().expect("every process may");
        assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
        assert_eq!(get_dumpable(), Ok(false));
    }
}
