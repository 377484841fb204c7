//! Where the built programs are: in the build directory of the running test, in its profile.
//!
//! `QUOTA_SERVER_BINARY=path` and `QUOTA_GATEWAY_BINARY=path` put other builds in their place, for
//! example ones that were broken on purpose to see a test fail. With both, nothing is built.

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
    let given = |name| std::env::var_os(name).map(PathBuf::from);
    let (server, gateway) = (given("QUOTA_SERVER_BINARY"), given("QUOTA_GATEWAY_BINARY"));
    let binaries = if let (Some(server), Some(gateway)) = (&server, &gateway) {
        Binaries {
            server: server.clone(),
            gateway: gateway.clone(),
        }
    } else {
        let profile = build_beside_this()?;
        Binaries {
            server: server.unwrap_or_else(|| profile.join("quota-server")),
            gateway: gateway.unwrap_or_else(|| profile.join("examples").join("gateway")),
        }
    };
    for program in [&binaries.server, &binaries.gateway] {
        if !program.exists() {
            bail!("{} is not there", program.display());
        }
    }
    Ok(binaries)
}

/// Builds both programs in the profile of the running one, and returns where they are.
fn build_beside_this() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("a process knows its program")?;
    // <build directory>/<profile>/deps/<test>, or <build directory>/<profile>/<program>
    let profile = program.parent().context("a program lies in a directory")?;
    let profile = match profile.parent() {
        Some(above) if profile.ends_with("deps") => above,
        _ => profile,
    };
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
    Ok(profile.to_owned())
}
