//! Where the built programs are: in the build directory of the running test, in its profile.
//!
//! `QUOTA_SERVER_BINARY=path` puts another build of the server in its place, for example one that
//! was broken on purpose to see a test fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, bail};

/// The built programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The authority server.
    pub server: PathBuf,
    /// The example gateway.
    pub gateway: PathBuf,
}

/// The programs of this build. They are brought up to date once in each test process, which costs
/// a moment if `tests/run` has just built them.
///
/// # Errors
/// If they cannot be built.
pub fn binaries() -> anyhow::Result<&'static Binaries> {
    static BUILT: OnceLock<Result<Binaries, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn build() -> anyhow::Result<Binaries> {
    let test = std::env::current_exe().context("a process knows its program")?;
    // <build directory>/<profile>/deps/<test>
    let profile = test
        .ancestors()
        .nth(2)
        .context("a test lies in a build directory")?;
    let name = profile
        .file_name()
        .and_then(|name| name.to_str())
        .context("a profile has a name")?;
    let target = profile
        .parent()
        .context("a profile lies in a build directory")?;
    let what = [
        ["-p", "quota-server", "--bin", "quota-server"],
        ["-p", "quota-client", "--example", "gateway"],
    ];
    for selection in what {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .arg("build")
            .args(selection)
            .arg("--quiet")
            .env("CARGO_TARGET_DIR", target);
        // The `dev` profile builds into `debug`; every other one into a directory of its name.
        if name != "debug" {
            cargo.args(["--profile", name]);
        }
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
        let status = cargo.status().context("cargo cannot be started")?;
        if !status.success() {
            bail!("{cargo:?} failed");
        }
    }
    let binaries = Binaries {
        server: std::env::var_os("QUOTA_SERVER_BINARY")
            .map_or_else(|| profile.join("quota-server"), PathBuf::from),
        gateway: profile.join("examples").join("gateway"),
    };
    for program in [&binaries.server, &binaries.gateway] {
        if !program.exists() {
            bail!("{} was built and is not there", program.display());
        }
    }
    Ok(binaries)
}
