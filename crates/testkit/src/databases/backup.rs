//! Database servers that go back to an earlier state, as after a failover that lost commits or a restore from a backup.

use std::{fs, path::PathBuf};

use super::{
    Server,
    programs::{command, find, run},
};

impl Server {
    /// Stops the server, copies its data and starts it again.
    ///
    /// # Errors
    ///
    /// The server does not stop or start, or the data cannot be copied.
    pub async fn back_up(&self) -> Result<(), String> {
        self.stop().await?;
        // As the server's user, to whom the files must belong.
        let mut copy = command(&find("cp", "coreutils")?, self.folder.path())?;
        copy.args(["-a", "-T"]).arg(&self.data).arg(self.copy());
        run(copy)?;
        self.start().await
    }

    /// Kills the server and starts it with the data of [`Server::back_up`], once: what was committed since then is lost.
    ///
    /// # Errors
    ///
    /// There is no copy, or the server does not start.
    pub async fn restore(&self) -> Result<(), String> {
        self.kill();
        fs::remove_dir_all(&self.data)
            .and_then(|()| fs::rename(self.copy(), &self.data))
            .map_err(|e| format!("{}: {e}", self.data.display()))?;
        self.start().await
    }

    /// Folder of the copy.
    fn copy(&self) -> PathBuf {
        self.folder.file("data-copy")
    }
}
