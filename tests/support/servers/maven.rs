//! What comes from Maven Central.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::need;

/// Puts this library and all its dependencies into the folder `lib` in this one; returns its own jar.
pub fn fetch(folder: &Path, group: &str, artifact: &str, version: &str) -> Result<PathBuf, String> {
    need("mvn")?;
    let pom = format!(
        "<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>leasehold.tests</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"
    );
    fs::write(folder.join("pom.xml"), pom).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut mvn = Command::new("mvn");
    mvn.args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]);
    let output = mvn.current_dir(folder).stdin(Stdio::null()).output().map_err(|error| format!("mvn: {error}"))?;
    let jar = folder.join(format!("lib/{artifact}-{version}.jar"));
    if output.status.success() && jar.is_file() {
        return Ok(jar);
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().take(3).collect::<Vec<_>>().join("; ");
    Err(format!("mvn could not fetch it ({}): {said}", output.status))
}
