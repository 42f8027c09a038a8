//! What holds of the whole process.

use std::io;

use nix::sys::resource::{Resource, setrlimit};

/// Turns core dumps off, also where the system pipes them to a program: kubeconfigs, tokens and keys are in memory.
/// With it the process cannot be traced, nor its memory read, by another process of the same user.
///
/// # Errors
/// What the system says.
pub fn no_core_dumps() -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // A pipe in /proc/sys/kernel/core_pattern is not held by the limit.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use nix::sys::prctl::get_dumpable;
    use nix::sys::resource::{Resource, getrlimit};

    use super::no_core_dumps;

    #[test]
    fn a_process_without_core_dumps_is_neither_dumpable_nor_may_it_write_one() {
        no_core_dumps().expect("every process may");
        assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
        assert_eq!(get_dumpable(), Ok(false));
    }
}
