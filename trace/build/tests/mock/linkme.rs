//! A mock of the attribute of `linkme`: returns the item without the attribute that the real one removes.

use proc_macro::{TokenStream, TokenTree};

/// Removes `#[linkme(..)]`.
#[proc_macro_attribute]
pub fn distributed_slice(_slice: TokenStream, item: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in item {
        let is_linkme = matches!(&token, TokenTree::Group(g) if g.to_string().starts_with("[linkme"));
        if is_linkme {
            kept.pop();
        } else {
            kept.push(token);
        }
    }
    kept.into_iter().collect()
}
