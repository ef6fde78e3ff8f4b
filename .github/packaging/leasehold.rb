# A formula for Homebrew, with REPOSITORY for the address; `sha256` is that of the release's archive.
class Leasehold < Formula
  desc "Holds a distributed lock while a command runs"
  homepage "REPOSITORY"
  url "REPOSITORY/archive/refs/tags/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license any_of: ["Apache-2.0", "MIT"]

  depends_on "rust" => :build

  def install
    system "cargo", "install", *std_cargo_args(features: "cli")
    man1.install Dir["src/cli/man/*.1"]
    generate_completions_from_executable(bin/"leasehold", "completions")
  end

  test do
    ENV["LEASEHOLD_STORE"] = "sqlite:#{testpath}/locks.db"
    assert_equal "held", shell_output("#{bin}/leasehold run k -- echo held").strip
    assert_match "is free", shell_output("#{bin}/leasehold status k")
  end
end
