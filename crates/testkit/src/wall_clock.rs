//! A wall clock that jumps under running programs, by a library that they preload: Linux has a namespace for monotonic
//! clocks, and none for this one. It is compiled for each clock, by the C compiler that the dependencies need too. For
//! programs that are linked against the system's libc.

use std::{fs::File, os::unix::fs::FileExt as _, path::PathBuf, process::Command};

use super::folder::Folder;

const SOURCE: &str = include_str!("wall_clock.c");

/// The wall clock of the programs that are started with [`WallClock::environment`]. It tells the machine's time at first.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset_path: PathBuf,
    offset: File,
    // Removed on drop: programs that run keep what they have opened.
    _folder: Folder,
}

impl WallClock {
    /// Compiles the library.
    ///
    /// # Errors
    ///
    /// There is no C compiler, or no folder for temporary files.
    pub fn new() -> Result<Self, String> {
        let folder = Folder::new("wall-clock")?;
        let (source, library) = (folder.write("wall_clock.c", SOURCE)?, folder.file("wall_clock.so"));
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        let done = compile.output().map_err(|e| format!("the C compiler cc: {e}"))?;
        if !done.status.success() {
            return Err(format!("{compile:?}: {}\n{}", done.status, String::from_utf8_lossy(&done.stderr)));
        }
        let offset_path = folder.write("offset", "")?;
        let offset = File::options().write(true).open(&offset_path);
        let offset = offset.map_err(|e| format!("{}: {e}", offset_path.display()))?;
        let clock = Self { library, offset_path, offset, _folder: folder };
        clock.jump_to(0)?;
        Ok(clock)
    }

    /// The environment variables of a program that tells this time.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("WALL_CLOCK_OFFSET", self.offset_path.display().to_string()),
        ]
    }

    /// Lets the clock tell so many seconds more than the machine's, or fewer, from the next look at it on.
    ///
    /// # Errors
    ///
    /// The file with the offset cannot be written.
    pub fn jump_to(&self, seconds: i64) -> Result<(), String> {
        let written = self.offset.write_all_at(&seconds.to_ne_bytes(), 0);
        written.map_err(|e| format!("{}: {e}", self.offset_path.display()))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::must;

    #[test]
    fn program_tells_the_time_of_its_own_clock() {
        let clock = must(WallClock::new());
        for wanted in [0, 3600, -3600] {
            must(clock.jump_to(wanted));
            let told = Command::new("date").arg("+%s").envs(clock.environment()).output();
            let told = String::from_utf8(told.expect("there is a date").stdout).expect("it is a number");
            let told: i64 = told.trim().parse().expect("it is a number");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
            let ahead = told - i64::try_from(now).expect("it fits");
            assert!((wanted - 60..=wanted).contains(&ahead), "{ahead} s, not {wanted}");
        }
    }
}
