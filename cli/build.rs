//! The commit that the command was built from, for `--version`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // Source from a package has no repository of its own. If the source lies within another project's
    // repository, the commit of that repository says nothing about the source.
    let own = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = own.then(|| git(&["show", "--no-patch", "--format=%h %cs", "HEAD"])).flatten();
    let version = env!("CARGO_PKG_VERSION");
    let version = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=HYPERTRACE_VERSION={version}");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
