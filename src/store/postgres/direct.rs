//! Whether a session is the server's own, or a pooler is in between. When a session starts, the server says which
//! process serves it. A pooler, which gives that process to other clients, too, says a number of its own.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The number of the process. The driver shows it only in the message that would cancel a statement; here that message
/// is kept and sent nowhere.
pub(super) async fn process(client: &Client) -> Option<i32> {
    let mut message = Written::default();
    client.cancel_token().cancel_query_raw(&mut message, AsItIs).await.ok()?;
    // The message ends with the process and the key, of four bytes each.
    let at = message.0.len().checked_sub(8)?;
    message.0.get(at..at + 4)?.try_into().ok().map(i32::from_be_bytes)
}

/// Keeps what is written to it. It agrees to TLS, for which the driver may ask, and has none.
#[derive(Default)]
struct Written(Vec<u8>);

struct AsItIs;

impl<S> TlsConnect<S> for AsItIs
where
    S: AsyncRead + AsyncWrite + TlsStream + Unpin,
{
    type Stream = S;
    type Error = Infallible;
    type Future = Ready<Result<S, Infallible>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(stream))
    }
}

impl TlsStream for &mut Written {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Written {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        into.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Written {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
