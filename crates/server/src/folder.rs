//! The data folder: the root key, and the token of whoever runs the server. Nobody else on the machine may
//! read it. The command line finds the server and its token here.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sprag_kernel::{Code, Refusal};

use crate::secret::{Key, TokenText};

const ROOT_KEY: &str = "root.key";
const ADMIN_TOKEN: &str = "admin.token";
const SERVER_URL: &str = "server.url";

/// The data folder of a server.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Opens or creates it. One that others may read is refused.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| failed(path, &e))?;
        let mode = fs::metadata(path).map_err(|e| failed(path, &e))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(Refusal::new(Code::ConfigInvalid)
                .with("folder", path.display().to_string())
                .with("reason", "others may read or write it; chmod 700 it"));
        }
        Ok(Self(path.to_owned()))
    }

    /// One that is there already, to look for a server.
    pub fn find(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The root key, made at the first start.
    pub fn root_key(&self) -> Result<Key, Refusal> {
        let text = self.keep(ROOT_KEY, || Key::new().to_string())?;
        text.trim().parse()
    }

    /// The token of whoever runs the server, made at the first start.
    pub fn admin_token(&self) -> Result<TokenText, Refusal> {
        let text = self.keep(ADMIN_TOKEN, || TokenText::new().to_string())?;
        text.trim().parse()
    }

    /// Says where the server listens.
    pub fn tell_url(&self, url: &str) -> Result<(), Refusal> {
        let path = self.path(SERVER_URL);
        let new = self.path("server.url.new");
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            writeln!(file, "{url}")?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| failed(&path, &error))
    }

    /// Where the server listens, and its token: what the command line needs.
    pub fn server(&self) -> Option<(String, String)> {
        let read = |name| fs::read_to_string(self.path(name)).ok().map(|s| s.trim().to_owned());
        read(SERVER_URL).zip(read(ADMIN_TOKEN))
    }

    /// Reads a secret file, or makes it. Made whole under another name first, so that a crash leaves
    /// none or all of it, and linked so that of two starts at once one wins.
    fn keep(&self, name: &str, make: impl FnOnce() -> String) -> Result<String, Refusal> {
        let path = self.path(name);
        match read_secret(&path) {
            Ok(text) => return text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path, &error)),
        }
        let fresh = self.path(&format!("{name}.{}", std::process::id()));
        let write = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
            file.write_all(make().as_bytes())?;
            file.sync_all()?;
            match fs::hard_link(&fresh, &path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        };
        let written = write();
        // It has its name now, or it never will.
        let _ = fs::remove_file(&fresh);
        written.map_err(|error| failed(&path, &error))?;
        read_secret(&path).map_err(|error| failed(&path, &error))?
    }
}

fn read_secret(path: &Path) -> io::Result<Result<String, Refusal>> {
    let mut file = OpenOptions::new().read(true).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Ok(Err(Refusal::new(Code::ConfigInvalid)
            .with("file", path.display().to_string())
            .with("reason", "others may read or write it; chmod 600 it")));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Ok(text))
}

fn failed(path: &Path, error: &io::Error) -> Refusal {
    Refusal::new(Code::InputUnreadable)
        .with("what", path.display().to_string())
        .with("reason", error.to_string())
}
