//! The commit that the command was built from, for `--version`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // A package of the source has no repository; another project's is no answer.
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
